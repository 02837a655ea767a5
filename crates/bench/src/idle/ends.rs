//! How soon what a server had of the pool is free after its end, however it ends.

use crate::progress::Bar;
use crate::served::{MadePool, Served};
use serde::Serialize;
use std::time::{Duration, Instant};
use tidepool_base::{Error, Result};
use tidepool_pool::check::{check, usage};
use tidepool_pool::pool::Pool;

/// Of the other database's server, which finds out. Nothing else looks.
const NEIGHBOUR: [&str; 4] = ["--database", "neighbour", "--far", "pool:"];

/// For the process to end, and for what it had to be free.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_micros(500);

/// One server's end.
#[derive(Clone, Debug, Serialize)]
pub struct End {
    pub how: &'static str,
    /// Extents that it had.
    pub extents: u64,
    /// From the signal to the end of the process, as its parent sees it, and to where all is free.
    pub ended_ms: f64,
    pub free_ms: f64,
    /// Extents that are not free after a while.
    pub left: u64,
}

pub(super) async fn run(pool: &MadePool, arguments: &[&str], count: usize) -> Result<Vec<End>> {
    let location = pool.location();
    let neighbour = Served::start(&[["--pool", &location].as_slice(), &NEIGHBOUR].concat()).await?;
    let books = pool.open()?;
    let bar = Bar::new("ends", count as u64, "servers");
    let mut ends = Vec::new();
    for number in 0..count {
        let how = ["KILL", "TERM", "ABRT"][number % 3];
        ends.push(one(&books, arguments, how).await?);
        bar.add(1);
    }
    neighbour.stop().await?;
    let report = check(&books, false)?;
    if let Some(fault) = report.faults.first() {
        return Err(Error::internal(format!("the pool's books are damaged: {fault}")));
    }
    Ok(ends)
}

/// Extents of the database.
fn owned(pool: &Pool, database: u8) -> Result<u64> {
    let of_database = |key: &(&str, &str, Option<u8>)| key.2 == Some(database);
    Ok(usage(pool)?.into_iter().filter(|(key, _)| of_database(key)).map(|(_, extents)| extents).sum())
}

async fn one(pool: &Pool, arguments: &[&str], how: &'static str) -> Result<End> {
    let mut server = Served::start(arguments).await?;
    let database = pool.database("b")?.0;
    let mut client = server.connect().await?;
    for sql in [
        "CREATE TABLE t (id bigint PRIMARY KEY, body text NOT NULL)",
        "INSERT INTO t SELECT i, md5(i::text) || md5((-i)::text) FROM generate_series(1, 300000) AS g(i)",
        "CREATE INDEX ON t (body)",
    ] {
        client.query(sql).await?.succeeded()?;
    }
    // A statement is at work when the end comes, but for one that the server waits for.
    let busy = (how != "TERM").then(|| {
        tokio::spawn(async move {
            let _ = client.query("SELECT count(*) FROM t AS a, t AS b WHERE a.body < b.body").await;
        })
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let extents = owned(pool, database)?;
    let started = Instant::now();
    server.signal(how).await?;
    let (mut ended, mut left) = (None, extents);
    let since = || started.elapsed().as_secs_f64() * 1e3;
    while started.elapsed() < PATIENCE && (ended.is_none() || left > 0) {
        if ended.is_none() && tokio::time::timeout(Duration::ZERO, server.ended()).await.is_ok() {
            ended = Some(since());
        }
        left = owned(pool, database)?;
        tokio::time::sleep(LOOK).await;
    }
    let free_ms = since();
    if let Some(busy) = busy {
        busy.abort();
    }
    let ended_ms = ended.ok_or_else(|| Error::internal(format!("the server did not end by SIG{how}")))?;
    Ok(End { how, extents, ended_ms, free_ms, left })
}
