//! Analytical streams, each a session of its own, and what they see of transactions.

use super::QUERIES;
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;
use tidepool_base::{Error, Result};
use tidepool_planner::{Planner, Session};

/// What streams know of the terminals.
pub(super) struct Seen<'r> {
    /// New orders whose commits have returned.
    pub orders: &'r AtomicU64,
    /// Orders before those.
    pub loaded: u64,
}

/// Whether queries saw what had been committed before they began.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Freshness {
    /// Queries whose snapshots were looked at.
    pub snapshots: u64,
    /// Those that lacked an order whose commit had returned before the query was handed in, or that had orders which their district did
    /// not count.
    pub stale: u64,
    /// Orders that a query saw beyond those that it had to see, at most: committed between its being handed in and its snapshot.
    pub ahead_max: u64,
    /// The first that was stale, in words.
    pub first: Option<String>,
}

impl Freshness {
    pub(super) fn merge(&mut self, other: Freshness) {
        self.snapshots += other.snapshots;
        self.stale += other.stale;
        self.ahead_max = self.ahead_max.max(other.ahead_max);
        self.first = self.first.take().or(other.first);
    }
}

/// What a stream did: milliseconds of each run of each query, by query.
#[derive(Clone, Debug, Default)]
pub(super) struct Done {
    pub times_ms: Vec<Vec<f64>>,
    pub freshness: Freshness,
}

/// A runtime for one thread, which hands statements in and waits for them.
pub(super) fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.map_err(|error| Error::io("start a thread", &error))
}

/// Runs the queries in turns, from `first` on, until it is `over`: each in a transaction that then looks at what its snapshot has.
pub(super) fn run(planner: &Arc<Planner>, first: usize, seen: &Seen<'_>, over: &AtomicBool) -> Result<Done> {
    runtime()?.block_on(async {
        let mut session = planner.session("tidepool");
        let mut done = Done { times_ms: vec![Vec::new(); QUERIES.len()], ..Done::default() };
        let mut next = first;
        while !over.load(Ordering::Relaxed) {
            let query = next % QUERIES.len();
            next += 1;
            session.query("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY").await?;
            let acknowledged = seen.loaded + seen.orders.load(Ordering::Acquire);
            let start = Instant::now();
            session.query(QUERIES[query]).await?;
            done.times_ms[query].push(start.elapsed().as_secs_f64() * 1e3);
            look(&mut session, acknowledged, query, &mut done.freshness).await?;
            session.query("COMMIT").await?;
        }
        Ok(done)
    })
}

/// Counts the orders of the transaction's one snapshot.
async fn look(session: &mut Session, acknowledged: u64, query: usize, freshness: &mut Freshness) -> Result<()> {
    let orders = number(&session.query("SELECT count(*) FROM orders").await?)?;
    // The next number of each district is one more than the orders it has had: clause 3.3.2.2.
    let counted = number(&session.query("SELECT sum(d_next_o_id - 1)::bigint FROM district").await?)?;
    freshness.snapshots += 1;
    freshness.ahead_max = freshness.ahead_max.max(orders.saturating_sub(acknowledged));
    if orders < acknowledged || orders != counted {
        freshness.stale += 1;
        let what = format!("query {}: {acknowledged} committed, {orders} seen, {counted} by districts", query + 1);
        freshness.first.get_or_insert(what);
    }
    Ok(())
}

/// The one number of a result.
pub(super) fn number(batches: &[RecordBatch]) -> Result<u64> {
    let column = batches.iter().find(|batch| batch.num_rows() > 0).map(|batch| batch.column(0).clone());
    let value = column.as_ref().and_then(|column| column.as_primitive_opt::<Int64Type>()).map(|column| column.value(0));
    value.and_then(|value| u64::try_from(value).ok()).ok_or_else(|| Error::internal("a count is no number"))
}
