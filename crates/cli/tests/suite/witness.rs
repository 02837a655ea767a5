//! Another session that keeps asking while a test misbehaves: nothing may disturb it.

use crate::server::{PATIENCE, Setup, TestServer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio_postgres::Client;

pub struct Witness {
    stop: Arc<AtomicBool>,
    running: tokio::task::JoinHandle<u64>,
}

impl Witness {
    /// A server, a witness of what happens to it, and a client.
    pub async fn with_server(setup: Setup) -> (TestServer, Witness, Client) {
        let server = TestServer::with(setup).await;
        let witness = Witness::start(&server).await;
        let client = server.connect().await;
        (server, witness, client)
    }

    pub async fn start(server: &TestServer) -> Witness {
        let client = server.connect().await;
        client.batch_execute("CREATE TABLE witness AS SELECT x FROM generate_series(1, 1000) AS t(x)").await.unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let running = tokio::spawn({
            let stop = stop.clone();
            async move {
                let mut rounds = 0;
                while !stop.load(Ordering::Relaxed) || rounds == 0 {
                    let row = client.query_one("SELECT count(*), sum(x)::bigint FROM witness", &[]).await.unwrap();
                    assert_eq!((row.get::<_, i64>(0), row.get::<_, i64>(1)), (1000, 500_500));
                    rounds += 1;
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                rounds
            }
        });
        Witness { stop, running }
    }

    /// Fails where the witness did.
    pub async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let rounds = tokio::time::timeout(PATIENCE, self.running).await.expect("still answered").unwrap();
        assert!(rounds > 0);
    }
}

/// Bytes that tables hold, and that the heaps of statements do.
pub async fn memory(client: &Client) -> (i64, i64) {
    let row = client
        .query_one(
            "SELECT coalesce(sum(bytes) FILTER (WHERE purpose IN ('main', 'delta', 'index', 'log')), 0)::bigint, \
                    coalesce(sum(bytes) FILTER (WHERE purpose = 'heap'), 0)::bigint FROM tidepool.memory",
            &[],
        )
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

/// Waits until tables hold `tables` bytes again and heaps little more than a statement's own.
pub async fn released(client: &Client, tables: i64) {
    let start = Instant::now();
    loop {
        let (now, heap) = memory(client).await;
        if now == tables && heap <= 4 << 20 {
            return;
        }
        assert!(start.elapsed() < PATIENCE, "tables hold {now} instead of {tables}, heaps {heap}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
