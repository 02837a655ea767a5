//! Clients that update rows at a fixed rate, and what others see of it.

use crate::client::Client;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tidepool_base::{Error, Result};
use tokio::task::JoinHandle;

/// Each has rows of its own.
const CLIENTS: u32 = 16;

/// Rows that a slow scan reads, and how often it fetches some.
const SCANNED_ROWS: u64 = 100_000;
const FETCHES: u64 = 200;

/// Rows with a time that clients update, and more rows, of which they update one at a time, too.
pub(super) async fn make_table(client: &mut Client) -> Result<()> {
    for sql in [
        "CREATE TABLE ticks (id INT PRIMARY KEY, at BIGINT NOT NULL)".to_owned(),
        format!("INSERT INTO ticks SELECT i, 0 FROM generate_series(1, {CLIENTS}) i"),
        "CREATE TABLE scanned (id INT PRIMARY KEY, n BIGINT NOT NULL)".to_owned(),
        format!("INSERT INTO scanned SELECT i, 1 FROM generate_series(1, {SCANNED_ROWS}) i"),
    ] {
        client.query(&sql).await?.succeeded()?;
    }
    Ok(())
}

/// Clients at work.
pub(super) struct Updates {
    is_over: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    clients: Vec<JoinHandle<Result<()>>>,
}

impl Updates {
    pub async fn start(address: &str, rate: u32) -> Result<Updates> {
        let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut clients = Vec::new();
        for number in 1..=CLIENTS {
            let mut client = Client::connect(address).await?;
            client.prepare("tick", "UPDATE ticks SET at = $2 WHERE id = $1").await?;
            client.prepare("change", "UPDATE scanned SET n = n + 1 WHERE id = $1").await?;
            let (is_over, done) = (is_over.clone(), done.clone());
            let interval = Duration::from_secs(1) * CLIENTS / rate;
            clients.push(tokio::spawn(async move { update(client, number, interval, &is_over, &done).await }));
        }
        Ok(Updates { is_over, done, clients })
    }

    /// Updates so far.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    pub async fn stop(self) -> Result<u64> {
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.map_err(|error| Error::internal(format!("a client failed: {error}")))??;
        }
        Ok(self.done.load(Ordering::Relaxed))
    }
}

/// One update each interval: every second one of the client's own row with a time, and otherwise of one of the many.
async fn update(
    mut client: Client,
    number: u32,
    interval: Duration,
    is_over: &AtomicBool,
    done: &AtomicU64,
) -> Result<()> {
    let mut random = crate::random::Random::new(number.into());
    let mut is_tick = false;
    let mut next = Instant::now() + interval.mul_f64(f64::from(number) / f64::from(CLIENTS));
    while !is_over.load(Ordering::Relaxed) {
        tokio::time::sleep_until(next.into()).await;
        // Those of a moment in which the processors were others' are made up for.
        while next <= Instant::now() && !is_over.load(Ordering::Relaxed) {
            next += interval;
            is_tick = !is_tick;
            let answer = if is_tick {
                client.execute("tick", &[i64::from(number), now_us()]).await?
            } else {
                let of_own = random.below(SCANNED_ROWS / u64::from(CLIENTS)) as i64;
                client.execute("change", &[of_own * i64::from(CLIENTS) + i64::from(number)]).await?
            };
            answer.succeeded()?;
            done.fetch_add(1, Ordering::Relaxed);
        }
    }
    Ok(())
}

/// Since 1970, in microseconds.
fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// How old the last update is that a host shows, when it is asked, in microseconds; looked at for so long. The time of an update is the one
/// at which its client sent it.
pub(super) async fn ages(address: &str, time: Duration) -> Result<Vec<f64>> {
    let mut client = Client::connect(address).await?;
    let (end, mut ages) = (Instant::now() + time, Vec::new());
    while Instant::now() < end {
        let asked = now_us();
        let last = client.query("SELECT max(at) FROM ticks").await?.succeeded()?.number(0)?;
        ages.push((asked - last).max(0) as f64);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(ages)
}

/// Reads rows that are updated meanwhile through a cursor, for so long. Fails where it is not as of one moment.
pub(super) async fn scan(address: &str, time: Duration) -> Result<()> {
    let mut client = Client::connect(address).await?;
    client.query("BEGIN ISOLATION LEVEL REPEATABLE READ").await?.succeeded()?;
    let sum = "SELECT count(*), sum(n) FROM scanned";
    let before = client.query(sum).await?.succeeded()?.values;
    client.query("DECLARE slow CURSOR FOR SELECT n FROM scanned").await?.succeeded()?;
    let (mut rows, mut fetched) = (0, 0);
    for _ in 0..FETCHES {
        tokio::time::sleep(time / FETCHES as u32).await;
        let fetch = format!("FETCH {} FROM slow", SCANNED_ROWS.div_ceil(FETCHES));
        let values = client.query(&fetch).await?.succeeded()?.values;
        rows += values.len();
        for value in values.into_iter().flatten() {
            fetched += value.parse::<i64>().map_err(|_| Error::internal(format!("\"{value}\" is no number")))?;
        }
    }
    let after = client.query(sum).await?.succeeded()?.values;
    client.query("COMMIT").await?.succeeded()?;
    let all = [Some(rows.to_string()), Some(fetched.to_string())];
    if before != after || before != all {
        let message = format!("a cursor saw {all:?} where its transaction saw {before:?} before and {after:?} after");
        return Err(Error::internal(message));
    }
    Ok(())
}

/// Of all threads of a process.
pub(super) fn processor_time(pid: u32) -> Result<Duration> {
    let path = format!("/proc/{pid}/task");
    let failed = |error| Error::io(format!("read \"{path}\""), &error);
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(&path).map_err(failed)?.flatten() {
        // It may be gone.
        let text = std::fs::read_to_string(thread.path().join("schedstat")).unwrap_or_default();
        nanoseconds += text.split_whitespace().next().and_then(|time| time.parse().ok()).unwrap_or(0);
    }
    Ok(Duration::from_nanos(nanoseconds))
}
