//! Statements that run now, and sessions that exist: `tidepool.queries`, `pg_stat_activity`, metrics.

use crate::workload::Place;
use chrono::{DateTime, Utc};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidepool_base::StatementId;
use tidepool_database::{AccessLog, Footing};
use tidepool_heap::{HeapUsage, QueryHeap};
use tidepool_table::{TableScan, TablespaceRead};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryState {
    /// It waits for a place in its workload class.
    Queued,
    Planning,
    Running,
    Finished,
    Failed,
}

impl QueryState {
    pub fn name(self) -> &'static str {
        match self {
            QueryState::Queued => "queued",
            QueryState::Planning => "planning",
            QueryState::Running => "running",
            QueryState::Finished => "finished",
            QueryState::Failed => "failed",
        }
    }
}

/// One statement. Lives in the registry while it runs, and afterwards among the latest finished ones.
pub struct QueryInfo {
    pub id: StatementId,
    pub session_id: u32,
    pub user: String,
    pub text: String,
    pub start: DateTime<Utc>,
    /// Rows handed to the client so far.
    pub rows: AtomicU64,
    /// Its reads are no part of the recorded workload.
    unrecorded: AtomicBool,
    /// Somebody asks what its operators did.
    observed: AtomicBool,
    heap_account_ns: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    state: QueryState,
    end: Option<DateTime<Utc>>,
    heap: Option<Arc<QueryHeap>>,
    scans: Vec<Arc<TableScan>>,
    /// Kept when heap and scans are let go.
    heap_bytes: Vec<(String, u64, u64)>,
    scan_bytes: Vec<TablespaceRead>,
    heap_stall_ns: u64,
}

impl QueryInfo {
    pub fn state(&self) -> QueryState {
        self.inner.lock().state
    }

    pub fn end(&self) -> Option<DateTime<Utc>> {
        self.inner.lock().end
    }

    /// Heap by tablespace: (name, bytes now, bytes at most so far).
    pub fn heap_bytes(&self) -> Vec<(String, u64, u64)> {
        let inner = self.inner.lock();
        match &inner.heap {
            Some(heap) => heap_bytes(heap),
            None => inner.heap_bytes.clone(),
        }
    }

    /// Main, delta and indexes read, by tablespace.
    pub fn scan_bytes(&self) -> Vec<TablespaceRead> {
        let inner = self.inner.lock();
        let mut bytes = inner.scan_bytes.clone();
        for scan in &inner.scans {
            add_scan(&mut bytes, scan);
        }
        bytes
    }

    /// Nanoseconds stalled by pacing the query heap (an estimate, see docs/explanation/far-memory-and-pacing.md), over all threads.
    pub fn heap_stall_ns(&self) -> u64 {
        self.inner.lock().heap_stall_ns
    }

    /// Called by each scan as it starts to execute.
    pub fn add_scan(&self, scan: Arc<TableScan>) {
        self.inner.lock().scans.push(scan);
    }

    /// Nanoseconds that keeping the account of a paced heap took, over all threads. They are taken off what the same thread owes
    /// (docs/explanation/far-memory-and-pacing.md), as a device would not have taken them.
    pub fn heap_account_ns(&self) -> u64 {
        self.heap_account_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn add_heap_account_ns(&self, ns: u64) {
        self.heap_account_ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub(crate) fn add_heap_stall_ns(&self, ns: u64) {
        self.inner.lock().heap_stall_ns += ns;
    }

    /// Keeps its reads out of the recorded workload.
    pub(crate) fn leave_unrecorded(&self) {
        self.unrecorded.store(true, Ordering::Relaxed);
    }

    /// Before it runs: `EXPLAIN (ANALYZE)` will show what its operators did.
    pub(crate) fn observe(&self) {
        self.observed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.observed.load(Ordering::Relaxed)
    }

    pub(crate) fn queued(&self) {
        self.inner.lock().state = QueryState::Queued;
        self.leave_unrecorded();
    }

    pub(crate) fn running(&self, heap: Option<Arc<QueryHeap>>) {
        let mut inner = self.inner.lock();
        inner.state = QueryState::Running;
        inner.heap = heap;
    }

    fn finish(&self, failed: bool, log: &AccessLog) {
        let mut inner = self.inner.lock();
        inner.state = if failed { QueryState::Failed } else { QueryState::Finished };
        inner.end = Some(Utc::now());
        if let Some(heap) = inner.heap.take() {
            inner.heap_bytes = heap_bytes(&heap).into_iter().map(|(name, _, peak)| (name, 0, peak)).collect();
        }
        let scans = std::mem::take(&mut inner.scans);
        for scan in &scans {
            add_scan(&mut inner.scan_bytes, scan);
        }
        let stall_ns = inner.heap_stall_ns + inner.scan_bytes.iter().map(|read| read.stall_ns).sum::<u64>();
        drop(inner);
        if !self.unrecorded.load(Ordering::Relaxed) {
            log.add(&scans, (Utc::now() - self.start).to_std().unwrap_or_default(), stall_ns);
        }
    }
}

/// As much of a statement's text as is shown and kept.
fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

fn heap_bytes(heap: &QueryHeap) -> Vec<(String, u64, u64)> {
    let row = |usage: HeapUsage| (usage.tablespace.name().to_owned(), usage.bytes, usage.bytes_peak);
    let mut rows: Vec<_> = heap.usage().into_iter().map(row).collect();
    // What the process gave counts as the last one's, which lacked it.
    if let Some((_, bytes, peak)) = rows.last_mut() {
        *bytes += heap.overdraft_bytes();
        *peak += heap.overdraft_bytes();
    }
    rows
}

fn add_scan(reads: &mut Vec<TablespaceRead>, scan: &TableScan) {
    scan.metrics().tablespaces.into_iter().for_each(|read| read.add_to(reads));
}

/// Bytes of a statement's text that are shown, and kept when it is over.
const TEXT_BYTES_MAX: usize = 64 << 10;

/// Finished statements that stay visible.
const FINISHED_MAX: usize = 100;

pub struct QueryRegistry {
    next: AtomicU64,
    queries: Mutex<Queries>,
    log: Arc<AccessLog>,
}

#[derive(Default)]
struct Queries {
    running: BTreeMap<u64, Arc<QueryInfo>>,
    finished: std::collections::VecDeque<Arc<QueryInfo>>,
}

impl QueryRegistry {
    /// Statements that end are added to `log`.
    pub fn new(log: Arc<AccessLog>) -> QueryRegistry {
        QueryRegistry { next: AtomicU64::new(0), queries: Mutex::default(), log }
    }

    fn info(&self, session_id: u32, user: &str, text: &str, start: DateTime<Utc>, state: QueryState) -> Arc<QueryInfo> {
        Arc::new(QueryInfo {
            id: StatementId(self.next.fetch_add(1, Ordering::Relaxed) + 1),
            session_id,
            user: user.to_owned(),
            text: shown(text).to_owned(),
            start,
            rows: AtomicU64::new(0),
            unrecorded: AtomicBool::new(false),
            observed: AtomicBool::new(false),
            heap_account_ns: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                state,
                end: None,
                heap: None,
                scans: Vec::new(),
                heap_bytes: Vec::new(),
                scan_bytes: Vec::new(),
                heap_stall_ns: 0,
            }),
        })
    }

    pub fn start(self: &Arc<Self>, session_id: u32, user: &str, text: &str) -> RunningQuery {
        let info = self.info(session_id, user, text, Utc::now(), QueryState::Planning);
        let id = info.id.0;
        self.queries.lock().running.insert(id, info.clone());
        RunningQuery {
            registry: self.clone(),
            info,
            failed: true,
            at_end: None,
            place: None,
            footing: Arc::default(),
            is_forgotten: false,
        }
    }

    /// A statement that is over by now and took no longer than that nobody could have seen it run. What it read is the caller's to add to the
    /// log.
    pub fn record(&self, session_id: u32, user: &str, text: &str, start: DateTime<Utc>, rows: u64, failed: bool) {
        let state = if failed { QueryState::Failed } else { QueryState::Finished };
        let info = self.info(session_id, user, text, start, state);
        info.rows.store(rows, Ordering::Relaxed);
        info.inner.lock().end = Some(Utc::now());
        let mut queries = self.queries.lock();
        queries.finished.push_front(info);
        let last = if queries.finished.len() > FINISHED_MAX { queries.finished.pop_back() } else { None };
        drop(queries);
        drop(last);
    }

    /// Statements that run now.
    pub fn running_count(&self) -> usize {
        self.queries.lock().running.len()
    }

    /// Running statements, oldest first, then the latest finished ones, newest first.
    pub fn list(&self) -> Vec<Arc<QueryInfo>> {
        let queries = self.queries.lock();
        queries.running.values().chain(queries.finished.iter()).cloned().collect()
    }
}

/// A statement's place among the running ones; left on drop, as failed unless `succeeded` was called.
pub struct RunningQuery {
    registry: Arc<QueryRegistry>,
    pub info: Arc<QueryInfo>,
    failed: bool,
    at_end: Option<Box<dyn FnOnce(bool) + Send>>,
    /// In its workload class, if it takes one; given back when the statement ends, or earlier.
    pub place: Option<Arc<Place>>,
    /// A statement that is planned anew goes on under another entry.
    pub footing: Arc<Footing>,
    is_forgotten: bool,
}

impl RunningQuery {
    pub fn succeeded(&mut self) {
        self.failed = false;
    }

    /// Leaves nothing behind among the finished ones: the statement goes on under another entry.
    pub fn forget(mut self) {
        self.is_forgotten = true;
    }

    /// What is to be done when the statement has ended, and is told whether it succeeded.
    pub fn at_end(&mut self, action: impl FnOnce(bool) + Send + 'static) {
        self.at_end = Some(Box::new(action));
    }
}

impl Drop for RunningQuery {
    fn drop(&mut self) {
        self.info.finish(self.failed, &self.registry.log);
        if let Some(action) = self.at_end.take() {
            action(!self.failed);
        }
        let mut queries = self.registry.queries.lock();
        queries.running.remove(&self.info.id.0);
        if self.is_forgotten || self.footing.is_overtaken() {
            return;
        }
        queries.finished.push_front(self.info.clone());
        queries.finished.truncate(FINISHED_MAX);
    }
}
