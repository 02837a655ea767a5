//! The protocol, through a driver and by hand.

use crate::raw::{self, Raw, field, kinds};
use crate::server::{MIB, PATIENCE, Setup, TestServer, code, connect};
use bytes::Bytes;
use futures::{SinkExt, StreamExt, TryStreamExt};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tidepool_base::SqlState;
use tidepool_database::Config;
use tidepool_planner::Planner;
use tidepool_server::{Service, ServiceOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_postgres::types::Type;
use tokio_postgres::{NoTls, SimpleQueryMessage};

/// The cells of a simple query's rows.
async fn cells(client: &tokio_postgres::Client, sql: &str) -> Vec<Vec<Option<String>>> {
    let messages = client.simple_query(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    messages
        .into_iter()
        .filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => Some((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect()),
            _ => None,
        })
        .collect()
}

async fn cell(client: &tokio_postgres::Client, sql: &str) -> String {
    cells(client, sql).await[0][0].clone().expect("not null")
}

/// On one thread: the server's own code first runs when it is waited for.
/// Some 10^13 pairs, whose sums are integers: nobody waits for the end, and nothing fails before it.
const ENDLESS: &str =
    "SELECT count(*) FROM generate_series(1, 3000000) a(x), generate_series(1, 3000000) b(y) WHERE (x + y) % 7 = 3";

#[tokio::test]
async fn a_server_that_is_asked_to_stop_before_it_serves_stops() {
    TestServer::start().await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn start_up_says_what_drivers_need() {
    let server = TestServer::start().await;
    let (_raw, messages) = Raw::start(server.address).await;
    let kinds = kinds(&messages);
    assert!(kinds.starts_with('R') && kinds.ends_with("KZ"), "{kinds}");
    let parameters: Vec<String> = messages
        .iter()
        .filter(|(kind, _)| *kind == b'S')
        .map(|(_, body)| String::from_utf8_lossy(body).replace('\0', "="))
        .collect();
    for wanted in
        ["server_encoding=UTF8", "client_encoding=UTF8", "integer_datetimes=on", "standard_conforming_strings=on"]
    {
        assert!(parameters.iter().any(|parameter| parameter.starts_with(wanted)), "{wanted}: {parameters:?}");
    }
    assert!(parameters.iter().any(|parameter| parameter.starts_with("DateStyle=ISO")), "{parameters:?}");

    let refused = |parameters: Vec<(&'static str, &'static str)>, version| async move {
        let mut raw = Raw::open(server.address).await;
        raw.send(&raw::startup(version, &parameters)).await;
        let messages = raw.rest().await;
        let (kind, body) = messages.last().expect("an answer");
        assert_eq!(*kind, b'E', "{parameters:?}");
        assert_eq!(field(body, b'S').as_deref(), Some("FATAL"));
        field(body, b'C').unwrap()
    };
    assert_eq!(refused(vec![("user", "tidepool"), ("database", "elsewhere")], (3, 0)).await, "3D000");
    assert_eq!(refused(vec![("user", "nobody"), ("database", "tidepool")], (3, 0)).await, "28000");
    assert_eq!(refused(vec![("database", "tidepool")], (3, 0)).await, "28000");
    assert_eq!(refused(vec![("user", "tidepool")], (2, 0)).await, "0A000");
    assert_eq!(refused(vec![("user", "tidepool"), ("no_such_setting", "1")], (3, 0)).await, "42704");

    // A newer client is told what it can have, and an older key length stays with the older version.
    let mut raw = Raw::open(server.address).await;
    raw.send(&raw::startup((3, 9), &[("user", "tidepool"), ("_pq_.unheard", "1")])).await;
    let messages = raw.until(b'Z').await;
    assert_eq!(messages[0].0, b'v');
    assert_eq!(messages[0].1[..8], [0, 3, 0, 2, 0, 0, 0, 1]);
    let key = |messages: &[raw::Message]| messages.iter().find(|(kind, _)| *kind == b'K').unwrap().1.len();
    assert_eq!(key(&messages), 4 + 32);
    let (_, messages) = Raw::start(server.address).await;
    assert_eq!(key(&messages), 4 + 4);

    let mut config = server.config();
    config.options("-c statement_timeout=12345 --application_name=from\\ options");
    let client = connect(&config).await.unwrap();
    assert_eq!(cell(&client, "SHOW application_name").await, "from options");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn simple_queries() {
    let server = TestServer::start().await;
    let (mut raw, _) = Raw::start(server.address).await;
    assert_eq!(kinds(&raw.ask(&raw::query("SELECT 1 AS a, NULL::text AS b")).await), "TDCZ");
    assert_eq!(kinds(&raw.ask(&raw::query("")).await), "IZ");
    assert_eq!(kinds(&raw.ask(&raw::query(" ;; -- nothing\n")).await), "IZ");
    assert_eq!(kinds(&raw.ask(&raw::query("SELECT 1; SELECT 2;")).await), "TDCTDCZ");
    // What follows an error is not run, and what came before it is undone with it.
    let messages =
        raw.ask(&raw::query("CREATE TABLE undone (a int); INSERT INTO undone VALUES (1); SELECT 1/0; SELECT 3")).await;
    assert!(kinds(&messages).starts_with("CC") && kinds(&messages).ends_with("EZ"), "{}", kinds(&messages));
    assert_eq!(messages.last().unwrap().1, b"I");
    let messages = raw.ask(&raw::query("SELECT * FROM undone")).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("42P01"));
    // A syntax error anywhere keeps all of it from running.
    let messages = raw.ask(&raw::query("CREATE TABLE never (a int); SELEKT 1")).await;
    assert_eq!(kinds(&messages), "EZ");
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("42601"));
    // The status byte follows the transaction block.
    let status = |messages: &[raw::Message]| messages.last().unwrap().1[0] as char;
    assert_eq!(status(&raw.ask(&raw::query("BEGIN")).await), 'T');
    assert_eq!(status(&raw.ask(&raw::query("SELECT nonsense")).await), 'E');
    let messages = raw.ask(&raw::query("SELECT 1")).await;
    assert_eq!((kinds(&messages).as_str(), status(&messages)), ("EZ", 'E'));
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("25P02"));
    let messages = raw.ask(&raw::query("COMMIT")).await;
    assert_eq!(status(&messages), 'I');
    assert!(messages.iter().any(|(kind, body)| *kind == b'C' && body == b"ROLLBACK\0"));
    // The function call message.
    let messages = raw.ask(&raw::message(b'F', &[0; 12])).await;
    assert_eq!((kinds(&messages).as_str(), field(&messages[0].1, b'C').as_deref()), ("EZ", Some("0A000")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_extended_protocol() {
    let server = TestServer::start().await;
    let (mut raw, _) = Raw::start(server.address).await;
    let all = |parts: &[Vec<u8>]| parts.concat();
    let numbers = "SELECT x FROM generate_series(1, 5) AS t(x) ORDER BY x";
    raw.ask(&raw::query("BEGIN")).await;
    let messages = raw
        .ask(&all(&[
            raw::parse("s", numbers),
            raw::bind("p", "s"),
            raw::message(b'D', b"Pp\0"),
            raw::execute("p", 2),
            raw::sync(),
        ]))
        .await;
    assert_eq!(kinds(&messages), "12TDDsZ");
    // A suspended portal goes on where it was, beside another of the same statement.
    let messages = raw.ask(&all(&[raw::bind("q", "s"), raw::execute("p", 2), raw::execute("q", 0), raw::sync()])).await;
    assert_eq!(kinds(&messages), "2DDsDDDDDCZ");
    let messages = raw.ask(&all(&[raw::execute("p", 2), raw::execute("p", 2), raw::sync()])).await;
    assert_eq!(kinds(&messages), "DCCZ");
    // Portals end with their transaction.
    raw.ask(&raw::query("COMMIT")).await;
    let messages = raw.ask(&all(&[raw::execute("p", 0), raw::sync()])).await;
    assert_eq!((kinds(&messages).as_str(), field(&messages[0].1, b'C').as_deref()), ("EZ", Some("34000")));
    // After an error everything up to Sync is skipped, and the implicit transaction is undone.
    let messages = raw
        .ask(&all(&[
            raw::parse("", "CREATE TABLE piped (a int)"),
            raw::bind("", ""),
            raw::execute("", 0),
            raw::parse("", "SELECT 1/0"),
            raw::bind("", ""),
            raw::execute("", 0),
            raw::parse("", "SELECT 1"),
            raw::bind("", ""),
            raw::execute("", 0),
            raw::sync(),
        ]))
        .await;
    assert!(kinds(&messages).starts_with("12C") && kinds(&messages).ends_with("EZ"), "{}", kinds(&messages));
    let messages = raw.ask(&raw::query("SELECT * FROM piped")).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("42P01"));
    // Statements that do not exist, or exist already.
    let messages = raw.ask(&all(&[raw::bind("", "nowhere"), raw::sync()])).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("26000"));
    let messages = raw.ask(&all(&[raw::parse("s", "SELECT 1"), raw::sync()])).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("42P05"));
    let messages = raw.ask(&all(&[raw::parse("", "SELECT 1; SELECT 2"), raw::sync()])).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("42601"));
    // Closing, also of what is not there, and by SQL.
    let messages = raw.ask(&all(&[raw::message(b'C', b"Snowhere\0"), raw::sync()])).await;
    assert_eq!(kinds(&messages), "3Z");
    assert_eq!(kinds(&raw.ask(&raw::query("DEALLOCATE s")).await), "CZ");
    let messages = raw.ask(&all(&[raw::bind("", "s"), raw::sync()])).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("26000"));
    // Nothing at all.
    let messages = raw
        .ask(&all(&[
            raw::parse("", ""),
            raw::message(b'D', b"S\0"),
            raw::bind("", ""),
            raw::execute("", 0),
            raw::sync(),
        ]))
        .await;
    assert_eq!(kinds(&messages), "1tn2IZ");
    // A cursor of SQL's can be described, and no other name.
    raw.ask(&raw::query("BEGIN; DECLARE \"c d\" CURSOR FOR SELECT 1 AS a")).await;
    let messages = raw.ask(&all(&[raw::message(b'D', b"Pc d\0"), raw::message(b'D', b"Pe\0"), raw::sync()])).await;
    assert_eq!((kinds(&messages).as_str(), field(&messages[1].1, b'C').as_deref()), ("TEZ", Some("34000")));
    raw.ask(&raw::query("ROLLBACK")).await;
    // Flush answers without ending anything.
    raw.send(&all(&[raw::parse("", "SELECT 1"), raw::message(b'H', &[])])).await;
    assert_eq!(kinds(&raw.until(b'1').await), "1");
    assert_eq!(kinds(&raw.ask(&raw::sync()).await), "Z");
    // An error is told at once: Flush asks for it, and what follows is skipped.
    raw.send(&all(&[raw::parse("", "SELECT nonsense"), raw::message(b'H', &[]), raw::parse("", "SELECT 1")])).await;
    assert_eq!(kinds(&raw.until(b'E').await), "E");
    assert_eq!(kinds(&raw.ask(&raw::sync()).await), "Z");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn types_in_text_and_binary() {
    let (_server, client) = TestServer::start_connected().await;
    // (as SQL, as PostgreSQL prints it)
    let values = [
        ("true", "t"),
        ("42::smallint", "42"),
        ("-7::integer", "-7"),
        ("9223372036854775807::bigint", "9223372036854775807"),
        ("1.5::real", "1.5"),
        ("0.1::double precision", "0.1"),
        ("12345.678::numeric(10,3)", "12345.678"),
        ("'Grüße'::text", "Grüße"),
        ("'abc'::varchar(5)", "abc"),
        ("date '2024-02-29'", "2024-02-29"),
        ("timestamp '2024-02-29 12:34:56.789'", "2024-02-29 12:34:56.789"),
        ("timestamptz '2024-02-29 12:34:56+00'", "2024-02-29 12:34:56+00"),
        ("interval '1 day 2 hours'", "1 day 02:00:00"),
        ("'\\xdeadbeef'::bytea", "\\xdeadbeef"),
    ];
    for (sql, text) in values {
        assert_eq!(cell(&client, &format!("SELECT {sql}")).await, text, "{sql}");
    }
    // The driver asks for binary.
    let row = client
        .query_one(
            "SELECT true, 42::smallint, -7::integer, 9223372036854775807::bigint, 1.5::real, 0.1::double precision, \
             'Grüße'::text, '\\xdeadbeef'::bytea, NULL::integer",
            &[],
        )
        .await
        .unwrap();
    assert!(row.get::<_, bool>(0));
    assert_eq!((row.get::<_, i16>(1), row.get::<_, i32>(2), row.get::<_, i64>(3)), (42, -7, i64::MAX));
    assert_eq!((row.get::<_, f32>(4), row.get::<_, f64>(5)), (1.5, 0.1));
    assert_eq!(row.get::<_, &str>(6), "Grüße");
    assert_eq!(row.get::<_, &[u8]>(7), [0xde, 0xad, 0xbe, 0xef]);
    assert_eq!(row.get::<_, Option<i32>>(8), None);
    let types: Vec<&Type> = row.columns().iter().map(|column| column.type_()).collect();
    assert_eq!(types[..4], [&Type::BOOL, &Type::INT2, &Type::INT4, &Type::INT8]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parameters() {
    let (server, client) = TestServer::start_connected().await;
    client
        .batch_execute("CREATE TABLE given (id bigint, name text, ok boolean, ratio double precision)")
        .await
        .unwrap();
    let insert = client.prepare("INSERT INTO given VALUES ($1, $2, $3, $4)").await.unwrap();
    assert_eq!(insert.params(), [Type::INT8, Type::TEXT, Type::BOOL, Type::FLOAT8]);
    for id in 0..10i64 {
        let name = (id % 3 != 0).then(|| format!("name {id}"));
        assert_eq!(client.execute(&insert, &[&id, &name, &(id % 2 == 0), &(id as f64 / 4.0)]).await.unwrap(), 1);
    }
    let select = client.prepare("SELECT id, name FROM given WHERE id >= $1 AND ratio < $2 ORDER BY id").await.unwrap();
    let rows = client.query(&select, &[&5i64, &2.0f64]).await.unwrap();
    let found: Vec<(i64, Option<String>)> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    assert_eq!(found, [(5, Some("name 5".to_owned())), (6, None), (7, Some("name 7".to_owned()))]);
    let typed = client.query_typed("SELECT $1::integer", &[(&42i32, Type::INT4)]).await.unwrap();
    assert_eq!(typed[0].get::<_, i32>(0), 42);
    let error = client.query("SELECT $1::integer", &[]).await.unwrap_err();
    assert!(!client.is_closed(), "{error}");
    // A value that is none of its type's.
    let (mut raw, _) = Raw::start(server.address).await;
    let parse = raw::message(b'P', b"\0SELECT $1\0\0\x01\0\0\0\x17");
    let bind = raw::message(b'B', b"\0\0\0\0\0\x01\0\0\0\x03abc\0\0");
    let messages = raw.ask(&[parse, bind, raw::sync()].concat()).await;
    assert_eq!(field(&messages[1].1, b'C').as_deref(), Some("22P02"), "{}", kinds(&messages));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn types_that_the_text_settles() {
    let (_server, client) = TestServer::start_connected().await;
    client.batch_execute("CREATE TABLE typed (a int, b text, c char(4), d date)").await.unwrap();
    client.batch_execute("CREATE TABLE once (k text PRIMARY KEY, n int, d date)").await.unwrap();
    client.batch_execute("INSERT INTO typed VALUES (1, 'x', 'ab', '2020-01-02'), (2, 'y', 'cd', NULL)").await.unwrap();
    for (sql, types) in [
        (
            "SELECT $1::int, $2::text[], $3::oid[], ($4)::uuid",
            vec![Type::INT4, Type::TEXT_ARRAY, Type::OID_ARRAY, Type::UUID],
        ),
        ("SELECT a FROM typed LIMIT $1 OFFSET $2", vec![Type::INT8, Type::INT8]),
        ("SELECT a FROM typed WHERE a = ANY($1)", vec![Type::INT4_ARRAY]),
        ("SELECT a FROM typed WHERE b <> ALL($1) AND d = ANY($2)", vec![Type::TEXT_ARRAY, Type::DATE_ARRAY]),
        ("SELECT a FROM typed WHERE c = $1", vec![Type::BPCHAR]),
        ("INSERT INTO typed (b, a) SELECT $1, $2::int", vec![Type::TEXT, Type::INT4]),
        (
            "INSERT INTO once VALUES ($1, $2) ON CONFLICT (k) DO UPDATE SET n = once.n + $3, d = $4 WHERE once.n < $5 RETURNING k || $6",
            vec![Type::TEXT, Type::INT4, Type::INT4, Type::DATE, Type::INT4, Type::TEXT],
        ),
    ] {
        let statement = client.prepare(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        assert_eq!(statement.params(), types, "{sql}");
    }
    let ids = async |sql: &str, parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)]| -> Vec<i32> {
        let rows = client.query(sql, parameters).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        rows.iter().map(|row| row.get(0)).collect()
    };
    assert_eq!(ids("SELECT a FROM typed WHERE a = ANY($1)", &[&vec![2, 3]]).await, [2]);
    assert_eq!(ids("SELECT a FROM typed WHERE b <> ALL($1)", &[&vec!["y", "z"]]).await, [1]);
    assert_eq!(ids("SELECT a FROM typed WHERE c = $1", &[&"ab  "]).await, [1]);
    assert_eq!(ids("SELECT a FROM typed ORDER BY a LIMIT $1 OFFSET $2", &[&5i64, &1i64]).await, [2]);
    let names = client.query("SELECT relname FROM pg_class WHERE relname = ANY($1)", &[&vec!["typed"]]).await.unwrap();
    assert_eq!(names[0].get::<_, &str>(0), "typed");
    // What drivers ask the catalogue for comes in the types that they know before they have asked.
    let statement = client.prepare("SELECT array_agg(oid), array_agg(typname::text) FROM pg_type").await.unwrap();
    let types: Vec<&Type> = statement.columns().iter().map(|column| column.type_()).collect();
    assert_eq!(types, [&Type::OID_ARRAY, &Type::TEXT_ARRAY]);
    let row =
        client.query_one("SELECT array_agg(oid ORDER BY oid) FROM pg_type WHERE oid IN (23, 25)", &[]).await.unwrap();
    assert_eq!(row.get::<_, Vec<u32>>(0), [23, 25]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn portals_of_a_driver() {
    let (_server, mut client) = TestServer::start_connected().await;
    let transaction = client.transaction().await.unwrap();
    let portal = transaction.bind("SELECT x FROM generate_series(1, 100000) AS t(x) ORDER BY x", &[]).await.unwrap();
    let mut next = 1;
    loop {
        let rows = transaction.query_portal(&portal, 30_000).await.unwrap();
        if rows.is_empty() {
            break;
        }
        for row in rows {
            assert_eq!(row.get::<_, i32>(0), next);
            next += 1;
        }
    }
    assert_eq!(next, 100_001);
    transaction.rollback().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn errors_carry_code_and_place() {
    let (_server, client) = TestServer::start_connected().await;
    for (sql, wanted) in [
        ("SELECT * FROM nowhere", "42P01"),
        ("SELECT nothing", "42703"),
        ("SELEKT", "42601"),
        ("SELECT nofunction(1)", "42883"),
        ("SELECT 1/0", "22012"),
        ("SELECT 'x'::integer", "22P02"),
        ("DROP TABLE nowhere", "42P01"),
        ("SET no_such_setting = 1", "42704"),
        ("CREATE TABLE t (a int, a int)", "42701"),
    ] {
        let error = client.simple_query(sql).await.unwrap_err();
        assert_eq!(code(&error), wanted, "{sql}: {error:?}");
    }
    let error = client.simple_query("SELECT 1 +\n FROM WHERE").await.unwrap_err();
    assert!(error.as_db_error().unwrap().position().is_some(), "{error:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn misspelt_names_are_told_what_is_near() {
    let (server, client) = TestServer::start_connected().await;
    client.batch_execute("CREATE TABLE trips (id int); CREATE ROLE guest LOGIN").await.unwrap();
    let hint = async |client: &tokio_postgres::Client, sql: &str| {
        let error = client.simple_query(sql).await.unwrap_err();
        error.as_db_error().unwrap().hint().map(str::to_owned)
    };
    for (sql, near) in [
        ("SELECT * FROM trip", "\"trips\""),
        ("INSERT INTO tripps VALUES (1)", "\"trips\""),
        ("DELETE FROM public.trisp", "\"public.trips\""),
        ("SELECT * FROM tidepool.memori", "\"tidepool.memory\""),
        ("SELECT date_trunk('day', now())", "\"date_trunc\""),
        ("CREATE TABLE other (id int) TABLESPACE fra", "\"far\""),
    ] {
        let hint = hint(&client, sql).await;
        assert!(hint.as_ref().is_some_and(|hint| hint.contains(near)), "{sql}: {hint:?}");
    }
    assert_eq!(hint(&client, "SELECT * FROM something_else").await, None);
    // An output's name is known where it stands alone only.
    assert_eq!(hint(&client, "SELECT id + 1 AS next FROM trips ORDER BY next % 2").await, None);
    // A name that the role may not see is not told to it.
    let guest = crate::server::connect(server.config().user("guest")).await.unwrap();
    assert_eq!(hint(&guest, "SELECT * FROM trip").await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cancel() {
    let server = TestServer::start().await;
    let client = Arc::new(server.connect().await);
    let token = client.cancel_token();
    let running = tokio::spawn({
        let client = client.clone();
        async move { client.simple_query(ENDLESS).await }
    });
    server.until_running("SELECT count(*) FROM generate_series").await;
    assert!(!running.is_finished());
    token.cancel_query(NoTls).await.unwrap();
    let error = running.await.unwrap().unwrap_err();
    assert_eq!(code(&error), "57014", "{error:?}");
    assert_eq!(cell(&client, "SELECT 1").await, "1");
    // A guess at the secret does nothing.
    let mut raw = Raw::open(server.address).await;
    let mut packet = 16u32.to_be_bytes().to_vec();
    packet.extend_from_slice(&80_877_102u32.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 1, 1, 2, 3, 4]);
    raw.send(&packet).await;
    assert!(raw.rest().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_subquery_for_each_row_ends_with_its_statement() {
    let server = TestServer::start().await;
    let client = server.connect().await;
    client.simple_query("CREATE TABLE t AS SELECT i AS v FROM generate_series(1, 5000) AS s(i)").await.unwrap();
    client.simple_query("SET statement_timeout = '300ms'").await.unwrap();
    // Nobody waits for the end of one answer, nor has any thread to spare for as many as are asked for.
    let endless =
        "SELECT count(*) FROM t a WHERE a.v < (SELECT count(*) FROM t b, t c, t d WHERE b.v + c.v + d.v > a.v)";
    for _ in 0..8 {
        let error = client.simple_query(endless).await.unwrap_err();
        assert_eq!(code(&error), "57014", "{error:?}");
    }
    // An aggregate that takes all its rows before anybody is asked again.
    let swallowed = "SELECT string_agg(a.v::text, ',' ORDER BY b.v) FILTER (WHERE a.v < 0) FROM t a, t b, t c WHERE a.v + b.v > c.v";
    for _ in 0..4 {
        client.simple_query("SET statement_timeout = '300ms'").await.unwrap();
        let error = client.simple_query(swallowed).await.unwrap_err();
        assert_eq!(code(&error), "57014", "{error:?}");
        client.simple_query("SET statement_timeout = 0").await.unwrap();
        // What the ended statement still holds is none of this one's.
        assert_eq!(cell(&client, "SELECT count(*) FROM t WHERE v % 2 = 0").await, "2500");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_vanishes_takes_its_statement_along() {
    let server = TestServer::start().await;
    let (mut raw, _) = Raw::start(server.address).await;
    raw.ask(&raw::query("CREATE TABLE half (a bigint)")).await;
    raw.ask(&raw::query("BEGIN")).await;
    raw.ask(&raw::query("INSERT INTO half VALUES (1)")).await;
    raw.send(&raw::query(ENDLESS)).await;
    server.until_running("SELECT count(*) FROM generate_series").await;
    drop(raw);
    // In the middle of a COPY, too.
    let (mut raw, _) = Raw::start(server.address).await;
    raw.send(&raw::query("COPY half FROM STDIN")).await;
    raw.until(b'G').await;
    raw.send(&raw::message(b'd', b"1\n2\n3")).await;
    drop(raw);
    // And without reading what it asked for.
    let (mut raw, _) = Raw::start(server.address).await;
    raw.send(&raw::query("SELECT * FROM generate_series(1, 10000000)")).await;
    server.until_running("SELECT * FROM generate_series").await;
    drop(raw);
    let client = server.connect().await;
    let start = Instant::now();
    loop {
        let others = cells(&client, "SELECT state, query FROM pg_stat_activity WHERE query LIKE '%generate_series%' AND state = 'active' AND query NOT LIKE '%pg_stat_activity%'").await;
        if others.is_empty() {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "still there: {others:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(cell(&client, "SELECT count(*) FROM half").await, "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn copy_in_and_out() {
    let (server, client) = TestServer::start_connected().await;
    client.batch_execute("CREATE TABLE copied (id bigint, name text)").await.unwrap();
    let rows: String = (0..50_000).map(|n| format!("{n},name {n}\n")).collect();
    let sink = client.copy_in("COPY copied FROM STDIN WITH (FORMAT csv)").await.unwrap();
    futures::pin_mut!(sink);
    // Pieces that end within rows.
    for piece in rows.as_bytes().chunks(9_999) {
        sink.send(Bytes::copy_from_slice(piece)).await.unwrap();
    }
    assert_eq!(sink.finish().await.unwrap(), 50_000);
    let out = client.copy_out("COPY (SELECT * FROM copied ORDER BY id) TO STDOUT WITH (FORMAT csv)").await.unwrap();
    let pieces: Vec<Bytes> = out.try_collect().await.unwrap();
    assert_eq!(pieces.concat(), rows.as_bytes());
    // A sink that is dropped unfinished sends CopyFail.
    {
        let sink = client.copy_in::<_, Bytes>("COPY copied FROM STDIN").await.unwrap();
        futures::pin_mut!(sink);
        sink.send(Bytes::from_static(b"1\tx\n")).await.unwrap();
    }
    assert_eq!(cell(&client, "SELECT count(*) FROM copied").await, "50000");
    // A bad row: the error names its line, and the rest of the data is not taken for messages.
    let (mut raw, _) = Raw::start(server.address).await;
    raw.send(&raw::query("COPY copied FROM STDIN")).await;
    raw.until(b'G').await;
    raw.send(&raw::message(b'd', b"1\tone\nx\ttwo\n")).await;
    let messages = raw.ask(&[raw::message(b'd', b"3\tthree\n"), raw::message(b'c', &[])].concat()).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("22P02"), "{}", kinds(&messages));
    assert!(field(&messages[0].1, b'W').is_some_and(|context| context.contains("line 2")), "{messages:?}");
    assert_eq!(kinds(&raw.ask(&raw::query("SELECT 1")).await), "TDCZ");
    // By the extended protocol.
    raw.send(&[raw::parse("", "COPY copied FROM STDIN"), raw::bind("", ""), raw::execute("", 0)].concat()).await;
    raw.until(b'G').await;
    let messages = raw.ask(&[raw::message(b'd', b"7\tseven\n"), raw::message(b'c', &[]), raw::sync()].concat()).await;
    assert_eq!(kinds(&messages), "CZ");
    raw.send(&raw::query("COPY copied FROM STDIN")).await;
    raw.until(b'G').await;
    let messages = raw.ask(&raw::message(b'f', b"changed my mind\0")).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("57014"));
    assert!(field(&messages[0].1, b'M').unwrap().contains("changed my mind"));
    assert_eq!(cell(&client, "SELECT count(*) FROM copied").await, "50001");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_idle_and_fifty_busy() {
    let (server, client) = TestServer::start_connected().await;
    client
        .batch_execute("CREATE TABLE busy AS SELECT x::bigint AS x FROM generate_series(1, 10000) AS t(x)")
        .await
        .unwrap();
    let mut idle = Vec::new();
    for _ in 0..200 {
        idle.push(server.connect().await);
    }
    let busy = (0..50i64).map(|worker| {
        let config = server.config();
        tokio::spawn(async move {
            let client = connect(&config).await.unwrap();
            for round in 0..10i64 {
                let row = client.query_one("SELECT count(*) FROM busy WHERE x % 50 = $1", &[&worker]).await.unwrap();
                assert_eq!(row.get::<_, i64>(0), 200, "worker {worker}, round {round}");
            }
        })
    });
    for worker in busy.collect::<Vec<_>>() {
        tokio::time::timeout(PATIENCE, worker).await.expect("in time").unwrap();
    }
    for client in &idle {
        assert_eq!(cell(client, "SELECT 1").await, "1");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_client_too_many() {
    let options = ServiceOptions { connections_max: 3, ..ServiceOptions::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() }).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(server.connect().await);
    }
    let error = connect(&server.config()).await.unwrap_err();
    assert_eq!(code(&error), "53300", "{error:?}");
    clients.pop();
    let start = Instant::now();
    while connect(&server.config()).await.is_err() {
        assert!(start.elapsed() < PATIENCE, "a place does not come free");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nonsense_on_the_port() {
    let server = TestServer::start().await;
    let witness = server.connect().await;
    // Before start-up: a fixed sequence of bytes from a small generator.
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    for round in 0..200 {
        let mut stream = TcpStream::connect(server.address).await.unwrap();
        let mut bytes: Vec<u8> = (0..64 + round * 7).map(|_| random()).collect();
        if round % 2 == 0 {
            // Plausible lengths get further.
            bytes[..4].copy_from_slice(&(32u32).to_be_bytes());
        }
        // The server may well have hung up before all is sent.
        let _ = stream.write_all(&bytes).await;
        let _ = stream.shutdown().await;
        let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.expect("closed");
    }
    // After it: every type of message with a random body.
    for kind in 0..=255u8 {
        let (mut raw, _) = Raw::start(server.address).await;
        let body: Vec<u8> = (0..random() % 64).map(|_| random()).collect();
        let _ = raw.stream.write_all(&raw::message(kind, &body)).await;
        let _ = raw.stream.write_all(&raw::sync()).await;
        let _ = raw.stream.shutdown().await;
        raw.rest().await;
    }
    // Lengths that lie.
    for (kind, len, wanted) in [
        (b'Q', 3u32, "08P01"),
        (b'Q', u32::MAX, "08P01"),
        (b'Q', 600 << 20, "54000"),
        (b'S', 1 << 20, "08P01"),
        (b'~', 4, "08P01"),
    ] {
        let (mut raw, _) = Raw::start(server.address).await;
        raw.send(&[&[kind], len.to_be_bytes().as_slice()].concat()).await;
        let messages = raw.rest().await;
        assert_eq!(kinds(&messages), "E", "{}", kind as char);
        assert_eq!(field(&messages[0].1, b'C').as_deref(), Some(wanted), "{} {len}", kind as char);
    }
    // Counts that lie within an honest length.
    let (mut raw, _) = Raw::start(server.address).await;
    let messages = raw.ask(&[raw::message(b'B', b"\0\0\xff\xff"), raw::sync()].concat()).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("08P01"));
    let messages = raw.ask(&raw::message(b'Q', b"SELECT '\xff\xfe'\0")).await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("22021"));
    assert_eq!(kinds(&raw.ask(&raw::query("SELECT 1")).await), "TDCZ");
    assert_eq!(cell(&witness, "SELECT 1").await, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_megabyte_of_sql() {
    let (_server, client) = TestServer::start_connected().await;
    let text = "x".repeat(1 << 20);
    assert_eq!(cell(&client, &format!("SELECT length('{text}')")).await, (1 << 20).to_string());
    let list = (0..20_000).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    assert_eq!(cell(&client, &format!("SELECT count(*) FROM (SELECT 7 AS x) t WHERE x IN ({list})")).await, "1");
    // Deep enough to overflow any stack that is walked without looking.
    let deep = format!("SELECT {}1{}", "(".repeat(200_000), ")".repeat(200_000));
    let error = client.simple_query(&deep).await.unwrap_err();
    assert!(!code(&error).is_empty() && !client.is_closed(), "{error:?}");
    assert_eq!(cell(&client, "SELECT 1").await, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slow_start_up_is_ended() {
    let options = ServiceOptions { authentication_timeout: Duration::from_millis(300), ..ServiceOptions::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() }).await;
    let mut raw = Raw::open(server.address).await;
    raw.send(&[0, 0]).await;
    assert!(raw.rest().await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn passwords() {
    let (server, client) = TestServer::start_connected().await;
    client.batch_execute("ALTER ROLE tidepool PASSWORD 'höchst geheim'").await.unwrap();
    let mut config = server.config();
    config.password("höchst geheim");
    assert_eq!(cell(&connect(&config).await.unwrap(), "SELECT 1").await, "1");
    config.password("geraten");
    assert_eq!(code(&connect(&config).await.unwrap_err()), "28P01");
    config.password("höchst geheim").user("somebody");
    assert_eq!(code(&connect(&config).await.unwrap_err()), "28P01");
    // The password itself is nowhere to be found.
    let kept = server.database.state().catalog.role("tidepool").unwrap().password.clone().unwrap();
    assert!(kept.starts_with("SCRAM-SHA-256$4096:") && !kept.contains("geheim"));
    client.batch_execute("ALTER ROLE tidepool PASSWORD NULL").await.unwrap();
    server.connect().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn roles_connect_as_far_as_they_may() {
    let (server, owner) = TestServer::start_connected().await;
    let sql = "CREATE ROLE ada LOGIN CONNECTION LIMIT 1; CREATE ROLE bob LOGIN PASSWORD 'geheim'; CREATE ROLE team;
               ALTER ROLE ada SET search_path = other; CREATE TABLE t (a int); GRANT SELECT ON t TO bob";
    owner.batch_execute(sql).await.unwrap();
    let mut config = server.config();
    let ada = connect(config.user("ada")).await.unwrap();
    assert_eq!(cell(&ada, "SELECT current_user || session_user").await, "adaada");
    assert_eq!(cell(&ada, "SHOW search_path").await, "other");
    assert_eq!(cell(&ada, "SHOW is_superuser").await, "off");
    assert_eq!(code(&ada.simple_query("SELECT * FROM public.t").await.unwrap_err()), "42501");
    assert_eq!(code(&ada.simple_query("CREATE TABLESPACE x LOCATION 'anon:'").await.unwrap_err()), "42501");
    assert_eq!(
        code(&ada.simple_query("SELECT pg_terminate_backend(1), pg_terminate_backend(2)").await.unwrap_err()),
        "42501"
    );
    let seen = "SELECT count(*) FROM pg_stat_activity WHERE query = '<insufficient privilege>'";
    assert_eq!(cell(&ada, seen).await, "1");
    assert_eq!(code(&connect(&config).await.unwrap_err()), "53300");
    assert_eq!(code(&connect(config.user("team")).await.unwrap_err()), "28000");
    assert_eq!(code(&connect(config.user("nobody")).await.unwrap_err()), "28000");
    // One with a password is asked for it, also while the database's own has none.
    assert_eq!(code(&connect(config.user("bob").password("geraten")).await.unwrap_err()), "28P01");
    let bob = connect(config.password("geheim")).await.unwrap();
    assert_eq!(cell(&bob, "SELECT count(*) FROM t").await, "0");
    // What is taken away is gone for the next statement.
    owner.batch_execute("REVOKE SELECT ON t FROM bob").await.unwrap();
    assert_eq!(code(&bob.simple_query("SELECT count(*) FROM t").await.unwrap_err()), "42501");
    assert_eq!(code(&owner.simple_query("DROP ROLE ada").await.unwrap_err()), "55006");
    owner.batch_execute("ALTER ROLE bob VALID UNTIL '2001-01-01'").await.unwrap();
    assert_eq!(code(&connect(&config).await.unwrap_err()), "28P01");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tls() {
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto::ring};
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("server.crt"), folder.path().join("server.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    write_key(&key, &made.signing_key.serialize_pem(), 0o600);
    let server = TestServer::with(Setup { tls: Some((certificate, key)), ..Setup::default() }).await;
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'S');
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
    let mut raw = Raw { stream };
    raw.send(&raw::startup((3, 0), &[("user", "tidepool"), ("database", "tidepool")])).await;
    raw.until(b'Z').await;
    assert_eq!(kinds(&raw.ask(&raw::query("SELECT 1")).await), "TDCZ");
    // With a password, binding to the channel is offered first.
    raw.ask(&raw::query("ALTER ROLE tidepool PASSWORD 'x'")).await;
    // Bytes slipped in before the handshake end the connection.
    let mut slipped = TcpStream::connect(server.address).await.unwrap();
    slipped.write_all(&[0, 0, 0, 8, 4, 210, 22, 47, b'Q', 0, 0, 0, 4]).await.unwrap();
    let mut answer = Vec::new();
    let _ = slipped.read_to_end(&mut answer).await;
    assert!(answer.is_empty() || answer == b"S", "{answer:?}");
}

pub(crate) fn write_key(path: &std::path::Path, pem: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, pem).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn plain_connections_are_refused_where_encryption_is_required() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("server.crt"), folder.path().join("server.key"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    write_key(&key, &made.signing_key.serialize_pem(), 0o600);
    let options = ServiceOptions { tls_required: true, ..ServiceOptions::default() };
    let tls = Some((certificate, key.clone()));
    let server = TestServer::with(Setup { tls, options, ..Setup::default() }).await;
    assert_eq!(code(&connect(&server.config()).await.unwrap_err()), "28000");
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'S');
    // A key that others may read starts no server.
    let others = folder.path().join("others.key");
    for mode in [0o644, 0o640, 0o604, 0o660] {
        write_key(&others, &made.signing_key.serialize_pem(), mode);
        let planner = Planner::new(server.database.clone()).unwrap();
        let service = Service::new(planner, ServiceOptions::default());
        let error = service.with_tls(&folder.path().join("server.crt"), &others).err().unwrap();
        let message = format!("private key file \"{}\" has group or world access", others.display());
        assert_eq!((error.code(), error.message()), (SqlState::CONFIG_FILE_ERROR, message.as_str()), "{mode:o}");
    }
}

/// The salt that a user's password is asked for with.
async fn salt(server: &TestServer, user: &str) -> String {
    let mut raw = Raw::open(server.address).await;
    raw.send(&raw::startup((3, 0), &[("user", user), ("database", "tidepool")])).await;
    raw.until(b'R').await;
    let first = b"n,,n=,r=abcdefgh";
    let length = (first.len() as u32).to_be_bytes();
    raw.send(&raw::message(b'p', &[b"SCRAM-SHA-256\0", length.as_slice(), first].concat())).await;
    let messages = raw.until(b'R').await;
    let text = String::from_utf8(messages[0].1[4..].to_vec()).unwrap();
    text.split(',').filter(|part| part.starts_with("s=") || part.starts_with("i=")).collect::<Vec<_>>().join(",")
}

/// Nobody finds out by it who exists: whoever does has the same salt each time, whatever becomes of the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unknown_users_have_a_salt_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let mut before: Option<Vec<String>> = None;
    for _ in 0..2 {
        let config = Config { data_dir: Some(folder.path().join("data")), ..Config::in_memory(256 * MIB, 256 * MIB) };
        let server = TestServer::with(Setup { config: Some(config), ..Setup::default() }).await;
        if before.is_none() {
            let client = server.connect().await;
            let sql = "ALTER ROLE tidepool PASSWORD 'x'; CREATE ROLE bare LOGIN";
            client.batch_execute(sql).await.unwrap();
        }
        let users = ["tidepool", "nobody", "somebody", "bare"];
        let mut salts = Vec::new();
        for user in users {
            let first = salt(&server, user).await;
            assert_eq!(salt(&server, user).await, first, "{user}");
            assert!(first.ends_with("i=4096") && !salts.contains(&first), "{user}: {first}");
            salts.push(first);
        }
        if let Some(before) = &before {
            assert_eq!(*before, salts);
        }
        before = Some(salts);
        let database = server.database.clone();
        server.stop().await;
        database.close().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failed_logins_wait_for_their_answers() {
    let (server, client) = TestServer::start_connected().await;
    client.batch_execute("ALTER ROLE tidepool PASSWORD 'x'").await.unwrap();
    let mut config = server.config();
    config.password("y");
    let start = Instant::now();
    for _ in 0..3 {
        assert_eq!(code(&connect(&config).await.unwrap_err()), "28P01");
    }
    // What the three have waited at least.
    assert!(start.elapsed() >= Duration::from_millis(700), "{:?}", start.elapsed());
    // Who knows the password does not wait for that.
    config.password("x");
    drop(connect(&config).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ssl_and_gss_are_declined_without_a_certificate() {
    let server = TestServer::start().await;
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 48]).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'N');
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'N');
    let mut raw = Raw { stream };
    raw.send(&raw::startup((3, 0), &[("user", "tidepool"), ("database", "tidepool")])).await;
    raw.until(b'Z').await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stopping_server_lets_statements_end() {
    let server = TestServer::start().await;
    let (mut idle, _) = Raw::start(server.address).await;
    let (mut copying, _) = Raw::start(server.address).await;
    copying.ask(&raw::query("CREATE TABLE last_rows (a bigint)")).await;
    copying.send(&raw::query("COPY last_rows FROM STDIN")).await;
    copying.until(b'G').await;
    copying.send(&raw::message(b'd', b"1\n")).await;
    server.ask_to_stop();
    let messages = idle.rest().await;
    assert_eq!(field(&messages[0].1, b'C').as_deref(), Some("57P01"), "{messages:?}");
    copying.send(&[raw::message(b'd', b"2\n"), raw::message(b'c', &[])].concat()).await;
    let messages = copying.rest().await;
    assert_eq!(kinds(&messages), "CZE");
    assert_eq!(messages[0].1, b"COPY 2\0");
    assert_eq!(field(&messages[2].1, b'C').as_deref(), Some("57P01"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_stopping_server_cancels_what_does_not_end() {
    let options = ServiceOptions { shutdown_grace: Duration::from_millis(300), ..ServiceOptions::default() };
    let server = TestServer::with(Setup { options, ..Setup::default() }).await;
    let (mut raw, _) = Raw::start(server.address).await;
    raw.send(&raw::query(ENDLESS)).await;
    server.until_running("SELECT count(*) FROM generate_series").await;
    server.stop().await;
    // It was told, and not cut off.
    let messages = raw.rest().await;
    let codes: Vec<_> = messages.iter().filter(|(kind, _)| *kind == b'E').map(|(_, body)| field(body, b'C')).collect();
    assert!(codes.iter().flatten().any(|code| code == "57014"), "{codes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn metrics() {
    let server = TestServer::with(Setup { metrics: true, ..Setup::default() }).await;
    let client = server.connect().await;
    client.batch_execute("CREATE TABLE counted (a int); INSERT INTO counted VALUES (1), (2), (3)").await.unwrap();
    client.simple_query("SELECT nothing").await.unwrap_err();
    let page = server.get("/metrics").await;
    assert!(page.starts_with("HTTP/1.1 200 OK") && page.contains("text/plain; version=0.0.4"), "{page}");
    for line in [
        "tidepool_connections 1",
        "tidepool_rows_loaded_total 3",
        "tidepool_statements_total{kind=\"insert\",code=\"00000\"} 1",
        "tidepool_statements_total{kind=\"select\",code=\"42703\"} 1",
        "tidepool_statement_duration_seconds_count 3",
        "tidepool_statement_duration_seconds_bucket{le=\"+Inf\"} 3",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is missing from {page}");
    }
    for prefix in [
        "tidepool_tablespace_bytes{tablespace=\"near\",purpose=\"main\"}",
        "tidepool_tablespace_size_bytes{",
        "tidepool_process_bytes{",
    ] {
        assert!(page.lines().any(|found| found.starts_with(prefix)), "{prefix} is missing from {page}");
    }
    // Others ask there whether this is the primary.
    assert!(server.get("/").await.starts_with("HTTP/1.1 200"));
    assert!(server.get("/nowhere").await.starts_with("HTTP/1.1 404"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_does_not_read_holds_nothing_up() {
    let server =
        TestServer::with(Setup { config: Some(Config::in_memory(128 * MIB, 64 * MIB)), ..Setup::default() }).await;
    let (mut slow, _) = Raw::start(server.address).await;
    // Far more than sockets buffer, and than near memory holds.
    slow.send(&raw::query("SELECT x, repeat('x', 1000) FROM generate_series(1, 200000) AS t(x)")).await;
    let client = server.connect().await;
    for _ in 0..20 {
        assert_eq!(cell(&client, "SELECT 1").await, "1");
    }
    // It can still have all of it.
    let mut rows = 0;
    loop {
        match slow.read().await {
            Some((b'D', _)) => rows += 1,
            Some((b'C', body)) => {
                assert_eq!(body, b"SELECT 200000\0");
                break;
            }
            Some((b'T', _)) => (),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(rows, 200_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notices_and_settings_are_reported() {
    let server = TestServer::start().await;
    let (mut raw, _) = Raw::start(server.address).await;
    let messages = raw.ask(&raw::query("COMMIT")).await;
    assert!(kinds(&messages).contains('N'), "{}", kinds(&messages));
    let notice = &messages.iter().find(|(kind, _)| *kind == b'N').unwrap().1;
    assert_eq!(field(notice, b'C').as_deref(), Some("25P01"));
    let messages = raw.ask(&raw::query("SET TimeZone = 'Europe/Berlin'")).await;
    assert!(messages.iter().any(|(kind, body)| *kind == b'S' && body == b"TimeZone\0Europe/Berlin\0"), "{messages:?}");
    let client = server.connect().await;
    let stream = client.query_raw("SELECT x FROM generate_series(1, 3) AS t(x)", Vec::<i32>::new()).await.unwrap();
    assert_eq!(stream.count().await, 3);
}

/// `name=relation.attribute` of each column that a `RowDescription` describes, and `-` of one that comes from nowhere.
async fn origins(client: &tokio_postgres::Client, described: &[u8]) -> String {
    let mut rest = &described[2..];
    let mut columns = Vec::new();
    while let Some(end) = rest.iter().position(|byte| *byte == 0) {
        let (name, numbers) = (String::from_utf8_lossy(&rest[..end]), &rest[end + 1..]);
        let relation = u32::from_be_bytes(numbers[..4].try_into().unwrap());
        let attribute = i16::from_be_bytes(numbers[4..6].try_into().unwrap());
        columns.push(match relation {
            0 => format!("{name}=-"),
            _ => {
                let relation = cell(client, &format!("SELECT {relation}::oid::regclass::text")).await;
                format!("{name}={relation}.{attribute}")
            }
        });
        rest = &numbers[18..];
    }
    columns.join(" ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn columns_say_what_documents_and_ids_they_are_of() {
    let (_server, client) = TestServer::start_connected().await;
    client
        .batch_execute(
            "CREATE TABLE d (id int, body json, token uuid, kept jsonb); INSERT INTO d VALUES (1, '{}', gen_random_uuid(), '{\"a\":[1]}')",
        )
        .await
        .unwrap();
    for (sql, wanted) in [
        ("SELECT CASE WHEN id > 0 THEN body END, CASE id WHEN 1 THEN NULL ELSE token END FROM d", "json uuid"),
        ("SELECT coalesce(body, '{}'), coalesce(token, NULL), nullif(token, token) FROM d", "json uuid uuid"),
        (
            "SELECT CASE WHEN id > 0 THEN (SELECT json_build_object('x', o.id) FROM d o WHERE o.id = d.id) END FROM d",
            "json",
        ),
        (
            "SELECT array_agg(body), array_agg(token), array_agg(relname ORDER BY oid) FROM d, pg_class",
            "_json _uuid _name",
        ),
        ("SELECT x FROM (SELECT array_agg(token) AS x FROM d) q", "_uuid"),
        (
            "SELECT kept, kept -> 'a', '{}'::jsonb, to_jsonb(id), coalesce(kept, '[]'), array_agg(kept) FROM d GROUP BY id, kept",
            "jsonb jsonb jsonb jsonb jsonb _jsonb",
        ),
        ("SELECT unnest(ARRAY[body]), ARRAY[token], (ARRAY[token])[1] FROM d", "json _uuid uuid"),
        (
            "SELECT CASE WHEN id > 0 THEN body::text END, array_agg(relname::text) FROM d, pg_class GROUP BY 1",
            "text _text",
        ),
    ] {
        let statement = client.prepare(sql).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        let types: Vec<&str> = statement.columns().iter().map(|column| column.type_().name()).collect();
        assert_eq!(types.join(" "), wanted, "{sql}");
        // In the binary form, which is each type's own.
        client.query(&statement, &[]).await.unwrap();
    }
    // COPY's binary form has arrays, too.
    let copied = client.copy_out("COPY (SELECT ARRAY[1, 2]) TO STDOUT (FORMAT binary)").await.unwrap();
    let pieces: Vec<Bytes> = copied.try_collect().await.unwrap();
    // After the header, the count of columns and the length: one dimension, no NULLs, of int4.
    assert_eq!(pieces.concat()[25..37], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 23]);
}

/// A value's bytes as they are sent.
#[derive(Debug)]
struct Sent(Vec<u8>);

impl tokio_postgres::types::ToSql for Sent {
    fn to_sql(
        &self,
        _: &tokio_postgres::types::Type,
        out: &mut bytes::BytesMut,
    ) -> Result<tokio_postgres::types::IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(tokio_postgres::types::IsNull::No)
    }

    fn accepts(of: &tokio_postgres::types::Type) -> bool {
        *of == tokio_postgres::types::Type::JSONB
    }

    tokio_postgres::types::to_sql_checked!();
}

impl<'r> tokio_postgres::types::FromSql<'r> for Sent {
    fn from_sql(
        _: &tokio_postgres::types::Type,
        raw: &'r [u8],
    ) -> Result<Sent, Box<dyn std::error::Error + Sync + Send>> {
        Ok(Sent(raw.to_vec()))
    }

    fn accepts(of: &tokio_postgres::types::Type) -> bool {
        *of == tokio_postgres::types::Type::JSONB
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn jsonb_comes_and_goes_after_the_version_of_its_form() {
    let (_server, client) = TestServer::start_connected().await;
    client.batch_execute("CREATE TABLE d (id int PRIMARY KEY, kept jsonb)").await.unwrap();
    let document = Sent(b"\x01{\"b\":1,\"a\":2}".to_vec());
    let document_form = b"\x01{\"a\": 2, \"b\": 1}".to_vec();
    let sent = client.query_one("INSERT INTO d VALUES (1, $1) RETURNING kept", &[&document]).await.unwrap();
    assert_eq!(sent.get::<_, Sent>(0).0, b"\x01{\"a\": 2, \"b\": 1}");
    for sql in ["SELECT kept FROM d WHERE kept = $1", "SELECT $1::jsonb", "UPDATE d SET kept = $1 RETURNING kept"] {
        let row = client.query_one(sql, &[&document]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        assert_eq!(row.get::<_, Sent>(0).0, b"\x01{\"a\": 2, \"b\": 1}", "{sql}");
    }
    let made = client.query_one("SELECT jsonb_build_object('b', id, 'a', 2), kept -> 'a' FROM d", &[]).await.unwrap();
    assert_eq!((made.get::<_, Sent>(0).0, made.get::<_, Sent>(1).0), (document_form, b"\x012".to_vec()));
    let other = client.query_one("SELECT $1::jsonb", &[&Sent(b"\x02{}".to_vec())]).await.unwrap_err();
    assert_eq!(code(&other), "XX000");
}

/// The expected ones are PostgreSQL's.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn columns_say_where_they_come_from() {
    let (server, client) = TestServer::start_connected().await;
    client
        .batch_execute(
            "CREATE TABLE oa (gone int, a int PRIMARY KEY, b text, c varchar(5));
             ALTER TABLE oa DROP COLUMN gone;
             CREATE TABLE ob (a int, d int);
             CREATE VIEW ov AS SELECT b AS x, a + 1 AS y FROM oa;
             CREATE VIEW ow AS SELECT y FROM ov;
             CREATE TABLE op (a int, b int) PARTITION BY RANGE (a);
             CREATE TABLE op1 PARTITION OF op FOR VALUES FROM (0) TO (10);
             INSERT INTO oa VALUES (1, 'x', 'y')",
        )
        .await
        .unwrap();
    let (mut raw, _) = Raw::start(server.address).await;
    for (sql, wanted) in [
        ("SELECT a, b, c, a + 1, 1 FROM oa", "a=oa.2 b=oa.3 c=oa.4 ?column?=- ?column?=-"),
        ("SELECT * FROM oa WHERE a = 1", "a=oa.2 b=oa.3 c=oa.4"),
        ("SELECT b AS other FROM oa ORDER BY c LIMIT 1", "other=oa.3"),
        ("SELECT t.a, count(*) FROM oa t GROUP BY t.a", "a=oa.2 count=-"),
        ("SELECT DISTINCT b FROM oa", "b=oa.3"),
        ("SELECT DISTINCT ON (a) a, b FROM oa", "a=oa.2 b=oa.3"),
        ("SELECT x.a, y.d, x.b || 'z' FROM oa x JOIN ob y ON x.a = y.a", "a=oa.2 d=ob.2 ?column?=-"),
        ("SELECT * FROM oa JOIN ob USING (a)", "a=oa.2 b=oa.3 c=oa.4 d=ob.2"),
        ("SELECT a FROM oa LEFT JOIN ob USING (a)", "a=oa.2"),
        ("SELECT a FROM oa RIGHT JOIN ob USING (a)", "a=ob.1"),
        ("SELECT a FROM oa FULL JOIN ob USING (a)", "a=-"),
        ("SELECT q, r FROM (SELECT b, a + 1 FROM oa) AS t(q, r)", "q=oa.3 r=-"),
        ("WITH w AS (SELECT c FROM oa) SELECT * FROM w", "c=oa.4"),
        ("SELECT * FROM ov", "x=ov.1 y=ov.2"),
        ("SELECT v.x FROM ov AS v, ow", "x=ov.1"),
        ("SELECT y FROM ow", "y=ow.1"),
        ("SELECT a FROM oa UNION ALL SELECT a FROM ob", "a=-"),
        ("SELECT (SELECT d FROM ob LIMIT 1), b FROM oa", "d=- b=oa.3"),
        ("SELECT a, row_number() OVER (ORDER BY a) FROM oa", "a=oa.2 row_number=-"),
        ("SELECT b, unnest(ARRAY[1,2]) FROM oa", "b=oa.3 unnest=-"),
        ("SELECT g, a FROM oa, generate_series(1, 2) AS g", "g=- a=oa.2"),
        ("VALUES (1)", "column1=-"),
        ("SELECT op.b FROM op WHERE a = 1", "b=op.2"),
        ("SELECT relname, oid FROM pg_class WHERE relname = 'oa'", "relname=pg_class.2 oid=pg_class.1"),
        ("SELECT table_name FROM information_schema.tables LIMIT 1", "table_name=information_schema.tables.3"),
        ("SELECT a, c FROM oa WHERE a = 1 FOR UPDATE", "a=oa.2 c=oa.4"),
        ("SELECT t.b, d FROM oa t, ob FOR UPDATE OF t", "b=oa.3 d=ob.2"),
        ("SELECT x FROM ov FOR UPDATE", "x=ov.1"),
        ("INSERT INTO oa (a, b) VALUES (2, 'q') RETURNING a, b, a + 1", "a=oa.2 b=oa.3 ?column?=-"),
        ("UPDATE oa SET b = 'n' WHERE a = 2 RETURNING *", "a=oa.2 b=oa.3 c=oa.4"),
        ("UPDATE oa SET b = 'n' FROM ob WHERE oa.a = ob.a RETURNING d, oa.b", "d=ob.2 b=oa.3"),
        ("DELETE FROM oa WHERE a = 2 RETURNING c, 7", "c=oa.4 ?column?=-"),
        ("INSERT INTO oa (a) VALUES (1) ON CONFLICT (a) DO UPDATE SET b = 'z' RETURNING b", "b=oa.3"),
        ("SELECT a FROM oa WHERE a IN (SELECT a FROM ob)", "a=oa.2"),
        ("SELECT max(a), min(b) FROM oa", "max=- min=-"),
        ("SELECT coalesce(b, 'x') FROM oa", "coalesce=-"),
        ("TABLE ob", "a=ob.1 d=ob.2"),
        ("SELECT a FROM oa WHERE EXISTS (SELECT 1 FROM ob WHERE ob.a = oa.a)", "a=oa.2"),
        ("WITH RECURSIVE r AS (SELECT a FROM oa UNION ALL SELECT a + 1 FROM r WHERE a < 3) SELECT a FROM r", "a=-"),
    ] {
        raw.ask(&raw::query("BEGIN")).await;
        let simple = raw.ask(&raw::query(sql)).await;
        raw.ask(&raw::query("ROLLBACK")).await;
        let statement = [raw::parse("", sql), raw::message(b'D', b"S\0"), raw::sync()].concat();
        let extended = raw.ask(&statement).await;
        // A query that was planned before.
        let again = raw.ask(&raw::query(&format!("BEGIN; {sql}; ROLLBACK"))).await;
        for (way, messages) in [("simple", simple), ("extended", extended), ("again", again)] {
            let described = messages.iter().find(|(kind, _)| *kind == b'T');
            let (_, described) = described.unwrap_or_else(|| panic!("{sql}: {way}: {messages:?}"));
            assert_eq!(origins(&client, described).await, wanted, "{sql}: {way}");
        }
    }
    raw.ask(&raw::query("BEGIN; DECLARE c CURSOR FOR SELECT b FROM oa")).await;
    let fetched = raw.ask(&raw::query("FETCH c")).await;
    assert_eq!(origins(&client, &fetched[0].1).await, "b=oa.3");
}

/// The types are PostgreSQL's. (Of a query within another, the outer one's places come first here, and last there.)
#[tokio::test]
async fn the_first_place_of_a_parameter_decides_its_type() {
    let (server, client) = TestServer::start_connected().await;
    client.batch_execute("CREATE TABLE t (a bigint, b text, n numeric)").await.unwrap();
    client
        .batch_execute("INSERT INTO t VALUES (1, '1', 1), (2, 'two', 2.5), (5000000000, '3', 5000000000)")
        .await
        .unwrap();
    for (sql, expected) in [
        ("SELECT count(*) FROM t WHERE a >= $1 AND a < $1 + 1000000000", "int8"),
        ("SELECT count(*) FROM t WHERE a < $1 + 1000000000 AND a >= $1", "int4"),
        ("SELECT count(*) + $1::int - $1 FROM t WHERE a < 5", "int4"),
        ("SELECT count(*) + 1 FROM t WHERE b = $1 OR a::text = $1", "text"),
        ("SELECT $1 + 1 FROM t WHERE a = $1", "int4"),
    ] {
        let statement = client.prepare(sql).await.unwrap();
        assert_eq!(statement.params().iter().map(|known| known.name()).collect::<Vec<_>>(), [expected], "{sql}");
        let given: &(dyn tokio_postgres::types::ToSql + Sync) = match expected {
            "int8" => &1_i64,
            "int4" => &1_i32,
            _ => &"1",
        };
        let row = client.query_one(&statement, &[given]).await.unwrap();
        let count = row.try_get::<_, i64>(0).or_else(|_| row.try_get::<_, i32>(0).map(i64::from)).unwrap();
        assert_eq!(count, 2, "{sql}");
    }
    server.stop().await;
}
