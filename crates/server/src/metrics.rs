//! Metrics in Prometheus' text format.

use crate::health;
use crate::service::Service;
use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tidepool_base::SqlState;
use tidepool_database::HostRole;
use tidepool_planner::ClassRow;
use tidepool_tablespace::{Purpose, Tablespace};
use tokio::net::{TcpListener, TcpStream};

/// Upper bounds of the latency histogram's buckets, seconds. Four a decade from 100 µs, where a statement's fixed cost is,
/// to 100 s.
const BUCKETS: [f64; 25] = [
    0.0001, 0.00018, 0.00032, 0.00056, 0.001, 0.0018, 0.0032, 0.0056, 0.01, 0.018, 0.032, 0.056, 0.1, 0.18, 0.32, 0.56,
    1.0, 1.8, 3.2, 5.6, 10.0, 18.0, 32.0, 56.0, 100.0,
];

/// Statements are counted by these kinds; a fixed list keeps the number of series bounded whatever clients send.
const KINDS: [&str; 30] = [
    "alter",
    "analyze",
    "begin",
    "call",
    "close",
    "comment",
    "commit",
    "copy",
    "create",
    "deallocate",
    "declare",
    "delete",
    "discard",
    "drop",
    "execute",
    "explain",
    "fetch",
    "grant",
    "insert",
    "merge",
    "prepare",
    "release",
    "reset",
    "rollback",
    "savepoint",
    "select",
    "set",
    "show",
    "truncate",
    "update",
];

fn kind(text: &str) -> &'static str {
    let text = text.trim_start_matches(|c: char| !c.is_ascii_alphabetic());
    let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
    let word = text[..end].to_ascii_lowercase();
    let word = match word.as_str() {
        "with" | "values" | "table" => "select",
        "start" => "begin",
        "end" => "commit",
        "abort" => "rollback",
        word => word,
    };
    KINDS.into_iter().find(|kind| *kind == word).unwrap_or("other")
}

/// What connections count.
pub(crate) struct Metrics {
    started: Instant,
    connections_total: AtomicU64,
    connections_open: AtomicU64,
    rows_loaded: AtomicU64,
    statements: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    /// Not cumulative; the last one is for everything above the bounds.
    buckets: [AtomicU64; BUCKETS.len() + 1],
    duration_ns: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Metrics {
        Metrics {
            started: Instant::now(),
            connections_total: AtomicU64::new(0),
            connections_open: AtomicU64::new(0),
            rows_loaded: AtomicU64::new(0),
            statements: Mutex::default(),
            buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            duration_ns: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    pub(crate) fn connection_opened(&self) {
        self.connections_total.fetch_add(1, Ordering::Relaxed);
        self.connections_open.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn connection_closed(&self) {
        self.connections_open.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn rows_loaded(&self, rows: u64) {
        self.rows_loaded.fetch_add(rows, Ordering::Relaxed);
    }

    /// `text` begins with the statement's first word: a tag or the statement itself.
    pub(crate) fn statement(&self, text: &str, code: SqlState, duration: Duration) {
        *self.statements.lock().entry((kind(text), code.code())).or_default() += 1;
        let seconds = duration.as_secs_f64();
        let bucket = BUCKETS.iter().position(|bound| seconds <= *bound).unwrap_or(BUCKETS.len());
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.duration_ns.fetch_add(duration.as_nanos() as u64, Ordering::Relaxed);
    }
}

/// A page in the making.
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (index, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{}{label}=\"{text}\"", if index == 0 { '{' } else { ',' });
        }
        let _ = writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" });
    }

    fn single(&mut self, name: &str, kind: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }
}

/// Everything, in text format 0.0.4.
pub(crate) fn render(service: &Service) -> String {
    let metrics = &service.metrics;
    let mut page = Page(String::with_capacity(16 * 1024));
    page.family("tidepool_build_info", "gauge", "The running version, as a label.");
    page.sample("tidepool_build_info", &[("version", env!("CARGO_PKG_VERSION"))], 1);
    page.single(
        "tidepool_uptime_seconds",
        "gauge",
        "Time since start.",
        format_args!("{:.3}", metrics.started.elapsed().as_secs_f64()),
    );
    page.single(
        "tidepool_connections",
        "gauge",
        "Clients connected now.",
        metrics.connections_open.load(Ordering::Relaxed),
    );
    page.single(
        "tidepool_connections_max",
        "gauge",
        "Clients that can be connected at once.",
        service.options.connections_max,
    );
    page.single(
        "tidepool_connections_total",
        "counter",
        "Clients that connected since start.",
        metrics.connections_total.load(Ordering::Relaxed),
    );
    page.family("tidepool_statements_total", "counter", "Statements by kind and SQLSTATE; 00000 is success.");
    for ((kind, code), count) in metrics.statements.lock().iter() {
        page.sample("tidepool_statements_total", &[("kind", kind), ("code", code)], count);
    }
    page.family("tidepool_statement_duration_seconds", "histogram", "Time from a statement's start to its last row.");
    let mut below = 0;
    for (bound, bucket) in BUCKETS.iter().zip(&metrics.buckets) {
        below += bucket.load(Ordering::Relaxed);
        page.sample("tidepool_statement_duration_seconds_bucket", &[("le", &bound.to_string())], below);
    }
    below += metrics.buckets[BUCKETS.len()].load(Ordering::Relaxed);
    page.sample("tidepool_statement_duration_seconds_bucket", &[("le", "+Inf")], below);
    let seconds = metrics.duration_ns.load(Ordering::Relaxed) as f64 / 1e9;
    page.sample("tidepool_statement_duration_seconds_sum", &[], seconds);
    page.sample("tidepool_statement_duration_seconds_count", &[], below);
    let plans = service.planner.plan_counts();
    page.family(
        "tidepool_plans_total",
        "counter",
        "Plans of operators that were made, and statements that a kept one served (reused).",
    );
    page.sample("tidepool_plans_total", &[("how", "made")], plans.made);
    page.sample("tidepool_plans_total", &[("how", "reused")], plans.reused);
    page.single(
        "tidepool_statements_prepared_ahead_total",
        "counter",
        "Statements of the primary's clients that a standby has prepared.",
        service.planner.prepared_ahead(),
    );
    page.single(
        "tidepool_rows_loaded_total",
        "counter",
        "Rows that INSERT, COPY and CREATE TABLE AS brought into tables.",
        metrics.rows_loaded.load(Ordering::Relaxed),
    );
    page.family(
        "tidepool_sessions_routed_total",
        "counter",
        "Sessions that went to a reader (out), went back to the primary (home), or stayed as no reader took them (kept).",
    );
    if let Some(routing) = service.routing.get() {
        let counts = &routing.counts;
        for (way, count) in [("out", &counts.out), ("home", &counts.home), ("kept", &counts.kept)] {
            page.sample("tidepool_sessions_routed_total", &[("way", way)], count.load(Ordering::Relaxed));
        }
    }
    roles(service, &mut page);
    workload_classes(service, &mut page);
    tablespaces(service, &mut page);
    page.family(
        "tidepool_archive_lag_bytes",
        "gauge",
        "Bytes of the log that its archive (log.archive) does not have.",
    );
    page.family("tidepool_archive_failing", "gauge", "1 while nothing can be archived.");
    let database = service.planner.database();
    if let Some(archive) = database.archiver() {
        let archived = database.lsn_of(archive.log.end).0;
        page.sample("tidepool_archive_lag_bytes", &[], database.written_lsn().0.saturating_sub(archived));
        page.sample("tidepool_archive_failing", &[], u8::from(archive.log.failure.is_some()));
    }
    let memory = tidepool_heap::process_memory();
    page.family("tidepool_process_bytes", "gauge", "Memory that no tablespace holds, by state.");
    page.sample("tidepool_process_bytes", &[("state", "allocated")], memory.allocated_bytes);
    page.sample("tidepool_process_bytes", &[("state", "resident")], memory.resident_bytes);
    page.0
}

/// Of a database that lives in a pool.
fn roles(service: &Service, page: &mut Page) {
    let database = service.planner.database();
    page.family("tidepool_host_role", "gauge", "1 for the role that the server has; of a database in a pool.");
    page.family("tidepool_term", "gauge", "The term that the server writes in, or follows.");
    page.family("tidepool_replay_lag_bytes", "gauge", "Bytes of the log that a standby has not applied, by host.");
    page.family(
        "tidepool_replay_lag_seconds",
        "gauge",
        "How much older what a standby shows is, by host; at the primary.",
    );
    page.family(
        "tidepool_second_tier_lag_bytes",
        "gauge",
        "Bytes of the log that the primary's data folder does not have.",
    );
    page.family("tidepool_second_tier_complete", "gauge", "1 while the primary's data folder is enough for a start.");
    page.family("tidepool_second_tier_failing", "gauge", "1 while nothing can be copied to the primary's data folder.");
    page.family("tidepool_copy_lag_bytes", "gauge", "Bytes of the log in its folder that a copy has not applied.");
    page.family("tidepool_copy_age_seconds", "gauge", "How long ago the newest that a copy shows was written.");
    page.family("tidepool_copy_failing", "gauge", "1 while a copy cannot go on with what is in its folder.");
    page.family("tidepool_copy_begun_anew_total", "counter", "How often a copy began anew with a later checkpoint.");
    if database.role() == HostRole::Alone {
        return;
    }
    if let Some(tier) = database.second_tier() {
        let lag = database.written_lsn().0.saturating_sub(database.lsn_of(tier.copied).0);
        page.sample("tidepool_second_tier_lag_bytes", &[], lag);
        page.sample("tidepool_second_tier_complete", &[], u8::from(tier.is_complete));
        page.sample("tidepool_second_tier_failing", &[], u8::from(tier.failure.is_some()));
    }
    if let Some(copy) = database.copy() {
        page.sample("tidepool_copy_lag_bytes", &[], database.lag_bytes().unwrap_or(0));
        if let Some(age) = copy.age() {
            page.sample("tidepool_copy_age_seconds", &[], age.as_secs_f64());
        }
        page.sample("tidepool_copy_failing", &[], u8::from(copy.failure.is_some()));
        page.sample("tidepool_copy_begun_anew_total", &[], copy.begun_anew);
    }
    page.sample("tidepool_host_role", &[("role", database.role().name())], 1);
    if let Some(term) = database.term() {
        page.sample("tidepool_term", &[], term);
    }
    if let Some(lag) = database.lag_bytes() {
        page.sample("tidepool_replay_lag_bytes", &[("host", "")], lag);
    }
    let written = database.written_lsn();
    for standby in database.standbys() {
        let lag = written.0.saturating_sub(standby.replayed.0);
        page.sample("tidepool_replay_lag_bytes", &[("host", &standby.name)], lag);
        if let Some(lag) = standby.lag {
            page.sample("tidepool_replay_lag_seconds", &[("host", &standby.name)], lag.as_secs_f64());
        }
    }
}

fn workload_classes(service: &Service, page: &mut Page) {
    let rows = service.planner.workload_classes();
    let mut family = |name: &str, kind: &str, help: &str, value: &dyn Fn(&ClassRow) -> f64| {
        page.family(name, kind, help);
        for row in &rows {
            page.sample(name, &[("class", row.class.name())], value(row));
        }
    };
    let running = |row: &ClassRow| row.running as f64;
    family("tidepool_workload_running", "gauge", "Statements and transactions that run, by workload class.", &running);
    let queued = |row: &ClassRow| row.queued as f64;
    family("tidepool_workload_queued", "gauge", "Statements that wait for their turn, by workload class.", &queued);
    let admitted = |row: &ClassRow| row.admitted as f64;
    family("tidepool_workload_admitted_total", "counter", "Statements and transactions that ran.", &admitted);
    let waited = |row: &ClassRow| row.waited as f64;
    family("tidepool_workload_waited_total", "counter", "Of those that ran, those that waited.", &waited);
    let seconds = |row: &ClassRow| row.wait.as_secs_f64();
    family("tidepool_workload_wait_seconds_total", "counter", "How long they waited, all together.", &seconds);
    page.family(
        "tidepool_workload_refused_total",
        "counter",
        "Statements that were refused, by workload class and reason.",
    );
    for row in &rows {
        for (reason, count) in [("full", row.refused_full), ("late", row.refused_late)] {
            let labels = [("class", row.class.name()), ("reason", reason)];
            page.sample("tidepool_workload_refused_total", &labels, count);
        }
    }
}

fn tablespaces(service: &Service, page: &mut Page) {
    let database = service.planner.database();
    let tablespaces = database.tablespaces();
    let list = tablespaces.list();
    page.family("tidepool_tablespace_bytes", "gauge", "Bytes owned, by tablespace and purpose.");
    let ledger = tablespaces.ledger();
    for row in &ledger {
        let labels = [("tablespace", row.tablespace.as_str()), ("purpose", row.purpose.name())];
        page.sample("tidepool_tablespace_bytes", &labels, row.bytes);
    }
    page.family("tidepool_tablespace_bytes_peak", "gauge", "The most bytes ever owned, by tablespace and purpose.");
    for row in &ledger {
        let labels = [("tablespace", row.tablespace.as_str()), ("purpose", row.purpose.name())];
        page.sample("tidepool_tablespace_bytes_peak", &labels, row.bytes_peak);
    }
    page.family("tidepool_tablespace_size_bytes", "gauge", "Bytes that a tablespace can hold.");
    for space in &list {
        page.sample("tidepool_tablespace_size_bytes", &[("tablespace", space.name())], space.usage().size_bytes);
    }
    page.family("tidepool_tablespace_resident_bytes", "gauge", "Bytes of a tablespace that memory backs.");
    for space in &list {
        page.sample(
            "tidepool_tablespace_resident_bytes",
            &[("tablespace", space.name())],
            space.usage().resident_bytes,
        );
    }
    let paced: Vec<_> = list
        .iter()
        .flat_map(|space| space.paced().into_iter().map(|(purpose, counters)| (space.name(), purpose.name(), counters)))
        .collect();
    page.family("tidepool_paced_bytes_total", "counter", "Bytes charged to an emulated device, by direction.");
    for (name, purpose, counters) in &paced {
        for (direction, bytes) in [("read", counters.bytes_read), ("write", counters.bytes_written)] {
            let labels = [("tablespace", *name), ("purpose", *purpose), ("direction", direction)];
            page.sample("tidepool_paced_bytes_total", &labels, bytes);
        }
    }
    page.family("tidepool_paced_link_bytes_total", "counter", "Bytes taken to have crossed an emulated device's link.");
    for (name, purpose, counters) in &paced {
        for (direction, bytes) in [("read", counters.link_bytes_read), ("write", counters.link_bytes_written)] {
            let labels = [("tablespace", *name), ("purpose", *purpose), ("direction", direction)];
            page.sample("tidepool_paced_link_bytes_total", &labels, bytes);
        }
    }
    page.family("tidepool_paced_lines_total", "counter", "Cache lines charged to an emulated device.");
    for (name, purpose, counters) in &paced {
        page.sample("tidepool_paced_lines_total", &[("tablespace", name), ("purpose", purpose)], counters.lines);
    }
    page.family("tidepool_stall_seconds_total", "counter", "Time that threads waited for an emulated device.");
    for (name, purpose, counters) in &paced {
        let seconds = counters.stall_ns as f64 / 1e9;
        page.sample("tidepool_stall_seconds_total", &[("tablespace", name), ("purpose", purpose)], seconds);
    }
    paging(&list, page);
}

fn paging(list: &[Arc<Tablespace>], page: &mut Page) {
    let paged: Vec<_> =
        list.iter().filter_map(|space| space.paged().map(|paged| (space.name(), paged, paged.counters()))).collect();
    page.family("tidepool_paged_cache_bytes", "gauge", "Most bytes of a paged tablespace that its local cache holds.");
    for (name, paged, _) in &paged {
        page.sample("tidepool_paged_cache_bytes", &[("tablespace", name)], paged.cache_bytes());
    }
    page.family("tidepool_paged_bytes", "gauge", "Bytes of a paged tablespace, by purpose and place.");
    for (name, paged, _) in &paged {
        for purpose in Purpose::ALL {
            let places = paged.places(purpose as usize);
            for (place, bytes) in [("local", places.local), ("remote", places.remote)] {
                let labels = [("tablespace", *name), ("purpose", purpose.name()), ("place", place)];
                page.sample("tidepool_paged_bytes", &labels, bytes);
            }
        }
    }
    page.family("tidepool_page_faults_total", "counter", "Page faults that were resolved, by what they took.");
    for (name, _, counters) in &paged {
        let resolved = counters.fetched + counters.zeroed + counters.soft + counters.unprotected;
        for (kind, count) in [
            ("fetched", counters.fetched),
            ("zeroed", counters.zeroed),
            ("soft", counters.soft),
            ("unprotected", counters.unprotected),
            ("shared", counters.faults.saturating_sub(resolved)),
        ] {
            page.sample("tidepool_page_faults_total", &[("tablespace", name), ("kind", kind)], count);
        }
    }
    page.family("tidepool_pages_evicted_total", "counter", "Pages that left the local cache.");
    for (name, _, counters) in &paged {
        page.sample("tidepool_pages_evicted_total", &[("tablespace", name)], counters.evicted);
    }
    page.family("tidepool_pages_written_back_total", "counter", "Modified pages that left the local cache.");
    for (name, _, counters) in &paged {
        page.sample("tidepool_pages_written_back_total", &[("tablespace", name)], counters.written_back);
    }
    page.family(
        "tidepool_paging_seconds_total",
        "counter",
        "What the network takes as modelled, what the mechanism took, what was waited beside it, and for other threads' pages.",
    );
    for (name, _, counters) in &paged {
        for (part, ns) in [
            ("modelled", counters.modelled_ns),
            ("mechanism", counters.mechanism_ns),
            ("waited", counters.waited_ns),
            ("shared", counters.shared_ns),
        ] {
            let labels = [("tablespace", *name), ("part", part)];
            page.sample("tidepool_paging_seconds_total", &labels, ns as f64 / 1e9);
        }
    }
    let nodes: Vec<_> = paged.iter().filter_map(|(name, paged, _)| Some((*name, paged.node()?))).collect();
    page.family("tidepool_node_up", "gauge", "Whether the memory node of a tablespace is there.");
    for (name, node) in &nodes {
        page.sample("tidepool_node_up", &[("tablespace", name)], u8::from(node.is_up));
    }
    page.family(
        "tidepool_node_losses_total",
        "counter",
        "Times that the memory node of a tablespace was found to be away.",
    );
    for (name, node) in &nodes {
        page.sample("tidepool_node_losses_total", &[("tablespace", name)], node.losses);
    }
    page.family(
        "tidepool_node_exchanges_total",
        "counter",
        "Requests that fetched pages from a memory node or sent them.",
    );
    for (name, node) in &nodes {
        page.sample("tidepool_node_exchanges_total", &[("tablespace", name)], node.exchanges);
    }
}

/// Answers `GET /metrics` on `listener` for as long as it is polled.
pub(crate) async fn serve(service: Arc<Service>, listener: TcpListener) {
    serve_with(Some(service), &listener).await;
}

/// As `serve`, while there is no service yet: it answers that the server is starting.
pub(crate) async fn serve_starting(listener: Arc<TcpListener>) {
    serve_with(None, &listener).await;
}

async fn serve_with(service: Option<Arc<Service>>, listener: &TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tokio::spawn(answer(service.clone(), stream));
            }
            Err(error) => {
                tracing::warn!("could not accept a connection for metrics: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn answer(service: Option<Arc<Service>>, stream: TcpStream) {
    let handle = service_fn(move |request: Request<hyper::body::Incoming>| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(respond(service.as_deref(), request.method(), request.uri())) }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(10))
        .serve_connection(TokioIo::new(stream), handle)
        .await;
    if let Err(error) = served {
        tracing::debug!("metrics connection: {error}");
    }
}

fn respond(service: Option<&Service>, method: &Method, uri: &hyper::Uri) -> Response<Full<Bytes>> {
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    // HAProxy asks by OPTIONS by default.
    let asks = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let (status, content_type, body) = match (path, health::answer(service, path, query)) {
        ("/metrics", _) if matches!(*method, Method::GET | Method::HEAD) => match service {
            Some(service) => (StatusCode::OK, "text/plain; version=0.0.4; charset=utf-8", render(service)),
            None => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", "the server is starting up\n".to_owned()),
        },
        ("/metrics", _) => (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "only GET is allowed\n".to_owned()),
        (_, Some((status, body))) if asks => (status, "application/json", body),
        (_, Some(_)) => {
            (StatusCode::METHOD_NOT_ALLOWED, "text/plain", "GET, HEAD and OPTIONS are allowed\n".to_owned())
        }
        (_, None) => (
            StatusCode::NOT_FOUND,
            "text/plain",
            "metrics are at /metrics, and the server's health at /health\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static(content_type));
    response
}
