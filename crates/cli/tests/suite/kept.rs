//! Clients whose primary is killed, and whose connections go on at the next.

use crate::cli::{Serving, tidepool};
use crate::failover::{Cluster, connect, connect_soon, free_address, one, pool, until};
use crate::raw::{self, Raw};
use crate::server::{PATIENCE, code};
use crate::sessions::{Rich, create_tables, rejoining};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, Error};

const STREAMING: &str = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'";

/// A server of the cluster, at the address that all of its servers are given.
fn start(cluster: &Cluster, name: &str, address: &str, config: &str) -> Serving {
    let mut command = tidepool();
    command.args(["serve", "--near", "128MB", "--far", "pool:", "--pool", &pool(cluster.folder.path())]);
    command.args(["--name", name, "--role", "auto", "--config", config, "--listen", address]);
    Serving::start(command).unwrap_or_else(|log| panic!("{name} does not start: {log}"))
}

/// A primary and its standby, which takes another for silent only when it has ended.
async fn pair(cluster: &Cluster, config: &str) -> (Serving, Serving, Client) {
    let address = free_address();
    let first = start(cluster, "h1", &address, config);
    let client = connect(&first.url).await;
    create_tables(&client).await;
    let second = start(cluster, "h2", &address, config);
    until(&client, STREAMING, "1").await;
    (first, second, client)
}

/// Pages of connections that a server has, of its own clients or of its primary's.
fn pages(server: &Serving) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", server.pid())).unwrap();
    let is_pages = |entry: &std::fs::DirEntry| {
        let path = std::fs::read_link(entry.path()).unwrap_or_default();
        path.to_string_lossy().contains("memfd:tidepool-session")
    };
    open.flatten().filter(is_pages).count()
}

/// Until the standby has what the primary's connections keep.
pub(crate) async fn until_kept(primary: &Serving, standby: &Serving) {
    let start = Instant::now();
    while pages(primary) == 0 || pages(primary) != pages(standby) {
        assert!(start.elapsed() < PATIENCE, "{} connections, {} kept", pages(primary), pages(standby));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Until the host of that name serves a client.
async fn until_primary(url: &str, name: &str) -> Client {
    let start = Instant::now();
    loop {
        let client = connect_soon(url).await;
        if one(&client, "SELECT name FROM tidepool.hosts WHERE is_this_server").await == name {
            return client;
        }
        assert!(start.elapsed() < PATIENCE, "{name} does not take over");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_notice_nothing_of_a_killed_primary() {
    let cluster = Cluster::new();
    let config = rejoining(&cluster, "1s");
    let (mut primary, mut standby, _setup) = pair(&cluster, &config).await;
    let address = primary.url.split('@').nth(1).unwrap().split('/').next().unwrap().to_owned();
    let url = primary.url.clone();
    let mut rich = Vec::new();
    for number in 1..=4 {
        let client = Rich::new(&url, number, None).await;
        let state = client.state().await;
        rich.push((client, state));
    }
    let (mut half, _) = Raw::start(address.parse().unwrap()).await;
    half.ask(&[raw::parse("named", "SELECT 'prepared'"), raw::sync()].concat()).await;
    let stopped = Arc::new(AtomicBool::new(false));
    let alone = Arc::new(AtomicU64::new(0));
    let adding: Vec<_> = (1..=3)
        .map(|account| {
            let (url, stopped, alone) = (url.clone(), stopped.clone(), alone.clone());
            tokio::spawn(async move {
                let client = connect(&url).await;
                match account {
                    1 => add_alone(client, stopped, &alone).await,
                    _ => add_patiently(client, account, stopped).await,
                }
            })
        })
        .collect();
    for round in 0..8 {
        let whole = [raw::bind("", "named"), raw::execute("", 0), raw::sync()].concat();
        let (first, second) = whole.split_at(3 + round as usize % 5);
        half.send(first).await;
        let before = alone.load(Ordering::Relaxed);
        while alone.load(Ordering::Relaxed) < before + 20 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        until_kept(&primary, &standby).await;
        primary.signal(libc::SIGKILL);
        let (next, killed) = (["h2", "h1"][round as usize % 2], ["h1", "h2"][round as usize % 2]);
        let client = until_primary(&url, next).await;
        half.send(second).await;
        let answer = half.until(b'Z').await;
        assert_eq!(raw::kinds(&answer), "2DCZ", "round {round}");
        for (client, state) in &rich {
            client.check(round, state).await;
        }
        assert_eq!(one(&client, "SELECT pg_try_advisory_lock(1)").await, "f");
        rich[round as usize % 4].0.check_cancel(&url).await;
        primary.wait();
        primary = std::mem::replace(&mut standby, start(&cluster, killed, &address, &config));
        until(&client, STREAMING, "1").await;
    }
    stopped.store(true, Ordering::Relaxed);
    let mut all = 0;
    for adding in adding {
        all += adding.await.unwrap();
    }
    let client = connect_soon(&url).await;
    assert_eq!(one(&client, "SELECT sum(balance) FROM accounts").await, all.to_string());
}

/// Adds by single statements: none of them fails, is lost, or is done twice.
async fn add_alone(client: Client, stopped: Arc<AtomicBool>, counted: &AtomicU64) -> i64 {
    let mut added = 0;
    let update =
        client.prepare("UPDATE accounts SET balance = balance + 1 WHERE id = 1 RETURNING balance").await.unwrap();
    while !stopped.load(Ordering::Relaxed) {
        let balance: i64 = client.query_one(&update, &[]).await.unwrap().get(0);
        added += 1;
        assert_eq!(balance, added, "an answer is lost, or was given twice");
        counted.store(added as u64, Ordering::Relaxed);
    }
    added
}

/// Adds by transactions, which come again after 40001 on the same connection.
async fn add_patiently(mut client: Client, account: i32, stopped: Arc<AtomicBool>) -> i64 {
    let mut added = 0;
    while !stopped.load(Ordering::Relaxed) {
        let adding = async {
            let transaction = client.transaction().await?;
            let update = "UPDATE accounts SET balance = balance + 1 WHERE id = $1 RETURNING balance";
            let balance: i64 = transaction.query_one(update, &[&account]).await?.get(0);
            transaction.commit().await?;
            Ok::<i64, Error>(balance)
        };
        match adding.await {
            Ok(balance) => {
                added += 1;
                assert_eq!(balance, added, "an answer is lost, or was given twice");
            }
            Err(error) => assert_eq!(code(&error), "40001", "{error}"),
        }
    }
    added
}
