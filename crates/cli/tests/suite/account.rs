//! What pacing accounted, by operator and in all.

use crate::server::TestServer;
use std::collections::BTreeMap;
use tokio_postgres::{Client, SimpleQueryMessage};

const COUNTERS: [&str; 5] = ["bytes_read", "bytes_written", "lines", "link_bytes_read", "link_bytes_written"];

type Counters = BTreeMap<String, u64>;

pub async fn lines(client: &Client, query: &str) -> Vec<String> {
    let messages = client.simple_query(query).await.unwrap();
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    messages.into_iter().filter_map(row).collect()
}

/// `tidepool.pacing` of a tablespace, by purpose.
async fn accounted(client: &Client, tablespace: &str) -> BTreeMap<String, (Counters, f64)> {
    let query = "SELECT purpose, bytes_read, bytes_written, lines, link_bytes_read, link_bytes_written, stall_ms \
                 FROM tidepool.pacing WHERE tablespace = $1";
    let rows = client.query(query, &[&tablespace]).await.unwrap();
    let counters = |row: &tokio_postgres::Row| -> Counters {
        COUNTERS.iter().map(|name| ((*name).to_owned(), row.get::<_, i64>(*name) as u64)).collect()
    };
    rows.iter().map(|row| (row.get("purpose"), (counters(row), row.get("stall_ms")))).collect()
}

/// Adds up the lines `Paced PURPOSE in TABLESPACE…: name=number …` of a plan.
fn told(plan: &[String], purpose: &str, tablespace: &str) -> Counters {
    let mut sum = Counters::new();
    let start = format!("Paced {purpose} in {tablespace}");
    for line in plan.iter().filter_map(|line| line.trim_start().strip_prefix(&start)) {
        let (_, counters) = line.split_once(": ").unwrap();
        for counter in counters.split(' ') {
            let (name, value) = counter.split_once('=').unwrap();
            *sum.entry(name.to_owned()).or_default() += value.parse::<u64>().unwrap();
        }
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_sum_up_to_what_pacing_accounted() {
    let (server, client) = TestServer::start_connected().await;
    client
        .batch_execute(
            "CREATE TABLESPACE slow LOCATION 'anon:' WITH (size = '64MB', profile = 'cxl-asic');
             CREATE TABLESPACE work LOCATION 'anon:' WITH (size = '256MB', profile = 'fpga-prototype');
             CREATE TABLE big TABLESPACE slow AS
                 SELECT value AS id, value % 5000 AS part, value::numeric(12,2) / 7 AS price, md5(value::text) AS digest
                 FROM generate_series(1, 200000) AS s(value);
             CREATE TABLE small TABLESPACE near AS
                 SELECT value AS part, 'part ' || value AS name FROM generate_series(1, 5000) AS s(value);",
        )
        .await
        .unwrap();
    let query = "SELECT name, count(*), sum(price) FROM big JOIN small USING (part) WHERE digest LIKE '%a%' \
                 GROUP BY name ORDER BY 3 DESC";
    let windows =
        "SELECT id, rank() OVER w, sum(price) OVER w FROM big WINDOW w AS (PARTITION BY part ORDER BY digest)";
    for query in [query, windows] {
        let before = [accounted(&client, "slow").await, accounted(&client, "work").await];
        client.batch_execute("SET temp_tablespaces = 'work'").await.unwrap();
        let plan = lines(&client, &format!("EXPLAIN (ANALYZE, VERBOSE) {query}")).await;
        client.batch_execute("RESET temp_tablespaces").await.unwrap();
        let after = [accounted(&client, "slow").await, accounted(&client, "work").await];
        for (purpose, tablespace, index) in [("main", "slow", 0), ("heap", "work", 1)] {
            let Some((now, stall_ms)) = after[index].get(purpose) else { continue };
            let earlier = before[index].get(purpose).cloned().unwrap_or_default();
            let told = told(&plan, purpose, tablespace);
            for name in COUNTERS {
                let accounted = now[name] - earlier.0.get(name).copied().unwrap_or(0);
                let told = told.get(name).copied().unwrap_or(0);
                assert_eq!(told, accounted, "{name} of {purpose} in {tablespace}: {plan:#?}");
            }
            let told_ms = told.get("stall_ns").copied().unwrap_or(0) as f64 / 1e6;
            assert!((told_ms - (stall_ms - earlier.1)).abs() < 0.001, "{purpose}: {told_ms} ms of {stall_ms}");
        }
        // Something was accounted: main is read, and batches go back to the heap's tablespace.
        assert!(told(&plan, "main", "slow")["bytes_read"] > 500_000, "{plan:#?}");
        assert!(told(&plan, "heap", "work")["bytes_written"] > 1_000_000, "{plan:#?}");
        assert!(told(&plan, "heap", "work")["stall_ns"] > 0, "{plan:#?}");
    }

    // Short forms are there without VERBOSE, and none where nothing is paced.
    client.batch_execute("SET temp_tablespaces = 'work'").await.unwrap();
    let short = lines(&client, &format!("EXPLAIN (ANALYZE) {query}")).await;
    let of_heap = |line: &&String| line.trim_start().starts_with("Heap in work (estimate): read ");
    assert!(short.iter().filter(of_heap).count() >= 4, "{short:#?}");
    client.batch_execute("SET temp_tablespaces = 'near'").await.unwrap();
    let near = lines(&client, &format!("EXPLAIN (ANALYZE, VERBOSE) {query}")).await;
    assert!(!near.iter().any(|line| line.contains("heap in") || line.contains("(estimate)")), "{near:#?}");
    drop(client);
    server.stop().await;
}
