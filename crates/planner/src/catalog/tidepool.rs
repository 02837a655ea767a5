//! The views of schema `tidepool`. Each column is described in docs/reference/system-views.md.

use super::objects::{table_bytes, table_schema};
use super::relations::Rows;
use super::value::Value;
use crate::facts::SessionFacts;
use chrono::{DateTime, Utc};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidepool_database::{ColumnRecord, IndexRecord};
use tidepool_device::paged::Places;
use tidepool_device::{CostModel, Profile};
use tidepool_heap::QueryHeap;
use tidepool_table::{Segment, TableVersion};
use tidepool_tablespace::Purpose;

/// One line about a view, as `obj_description` gives it.
pub fn description(name: &str) -> &'static str {
    match name {
        "memory" => "bytes by tablespace and purpose, and of the process",
        "tables" => "rows and bytes of tables and their columns",
        "tablespaces" => "tablespaces: size, use, profile and pacing",
        "queries" => "statements that run now and the latest finished ones",
        "pacing" => "what emulated devices were charged with",
        "paging" => "paged tablespaces: cache, faults and what they took",
        "hosts" => "hosts of the pool: processes, and what they own",
        "pool" => "devices of the pool and what of them is free",
        "pool_extents" => "extents of the pool by state, kind and database",
        "pool_events" => "last events of the pool",
        "second_tier" => "the data folder of a primary in a pool, and how far behind it is",
        "copy" => "what a copy follows of another pool's database, and how far behind it is",
        "archive" => "the archive of the log, and how far behind it is",
        "access" => "what statements read of tables and columns: the recorded workload",
        "index_access" => "what statements read of indexes: the recorded workload",
        "workload" => "how much there is of the recorded workload",
        "progress" => "progress of long commands",
        "settings" => "settings of this session",
        "profiles" => "device profiles that a tablespace can name",
        "workload_classes" => "workload classes: who runs, who waits and who was refused",
        _ => "",
    }
}

/// Where the log is archived.
fn archive(facts: &SessionFacts, rows: &mut Rows) {
    let database = facts.planner.database();
    let Some(archive) = database.archiver() else { return };
    let archived = database.lsn_of(archive.log.end);
    rows.push([
        ("folder", archive.folder.display().to_string().into()),
        ("archived_lsn", Some(archived.to_string()).filter(|_| archived.0 > 0).into()),
        ("lag_bytes", database.written_lsn().0.saturating_sub(archived.0).into()),
        ("archived_at", archive.log.archived_at.map(chrono::DateTime::<chrono::Utc>::from).into()),
        ("failure", archive.log.failure.map(|error| error.to_string()).into()),
    ]);
}

/// Fills `rows` with what the view named `name` holds.
pub fn fill(name: &str, facts: &SessionFacts, rows: &mut Rows) {
    match name {
        "memory" => memory(facts, rows),
        "tables" => tables(facts, rows),
        "tablespaces" => tablespaces(facts, rows),
        "queries" => queries(facts, rows),
        "pacing" => pacing(facts, rows),
        "paging" => paging(facts, rows),
        "hosts" | "pool" | "pool_extents" | "pool_events" | "second_tier" | "copy" => {
            super::pool::fill(name, facts, rows)
        }
        "archive" => archive(facts, rows),
        "access" => access(facts, rows),
        "index_access" => index_access(facts, rows),
        "workload" => {
            let workload = facts.planner.database().workload();
            rows.push([
                ("since", time(workload.since_us).into()),
                ("statements", workload.statements.into()),
                ("elapsed_ms", (workload.elapsed_ns as f64 / NS_PER_MS).into()),
                ("stall_ms", (workload.stall_ns as f64 / NS_PER_MS).into()),
            ]);
        }
        "progress" => progress(facts, rows),
        "settings" => {
            for setting in facts.settings.list(facts.planner.database()) {
                rows.push([
                    ("name", setting.name.into()),
                    ("value", setting.value.into()),
                    ("description", setting.description.into()),
                ]);
            }
        }
        "profiles" => {
            let mut profiles = Profile::presets();
            let own = &facts.planner.database().config().profiles;
            // The file's word counts over a preset's of the same name, as it does where a tablespace names it.
            profiles.retain(|preset| own.iter().all(|profile| profile.name != preset.name));
            profiles.extend(own.iter().cloned());
            for profile in profiles {
                rows.push([
                    ("name", profile.name.into()),
                    ("read_latency_ns", profile.read_latency_ns.into()),
                    ("write_latency_ns", profile.write_latency_ns.into()),
                    ("read_gb_per_s", profile.read_gb_per_s.into()),
                    ("write_gb_per_s", profile.write_gb_per_s.into()),
                    ("mixed_gb_per_s", profile.mixed_gb_per_s.to_string().into()),
                    ("granularity_bytes", profile.granularity_bytes.into()),
                    ("source", profile.source.into()),
                ]);
            }
        }
        "workload_classes" => workload_classes(facts, rows),
        _ => {}
    }
}

fn workload_classes(facts: &SessionFacts, rows: &mut Rows) {
    let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
    for row in facts.planner.workload_classes() {
        let cores: Vec<String> = row.cores.iter().map(usize::to_string).collect();
        rows.push([
            ("class", row.class.name().into()),
            ("running", row.running.into()),
            ("running_max", row.running_max.into()),
            ("queued", row.queued.into()),
            ("queued_max", row.queued_max.into()),
            ("queue_timeout_ms", row.queue_timeout.map(ms).into()),
            ("admitted", row.admitted.into()),
            ("waited", row.waited.into()),
            ("wait_ms", ms(row.wait).into()),
            ("wait_ms_max", ms(row.wait_max).into()),
            ("refused_full", row.refused_full.into()),
            ("refused_late", row.refused_late.into()),
            ("cores", (!cores.is_empty()).then(|| cores.join(", ")).into()),
        ]);
    }
}

/// Resident bytes of this process as the kernel counts them, or `None` where there is no `/proc`.
fn resident_bytes() -> Option<u64> {
    // Outside: the kernel writes to no memory that may be paged.
    let text = QueryHeap::outside(|| std::fs::read_to_string("/proc/self/status")).ok()?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    kilobytes.trim().trim_end_matches("kB").trim().parse::<u64>().ok().map(|kilobytes| kilobytes * 1024)
}

fn memory(facts: &SessionFacts, rows: &mut Rows) {
    let spaces = facts.planner.database().tablespaces();
    for space in spaces.list() {
        let mut counted = 0;
        // What is reserved is in the process's own.
        for row in space.ledger().into_iter().filter(|row| row.purpose != Purpose::Reserved) {
            let places = space.paged().map(|paged| paged.places(row.purpose as usize));
            counted += row.bytes;
            rows.push([
                ("tablespace", row.tablespace.into()),
                ("purpose", row.purpose.name().into()),
                ("bytes", row.bytes.into()),
                ("bytes_peak", row.bytes_peak.into()),
                ("bytes_local", places.map(|places| places.local).into()),
                ("bytes_remote", places.map(|places| places.remote).into()),
            ]);
        }
        if let Some(paged) = space.paged() {
            // Pages that are mapped and have a copy are there twice, and those that were never touched not at all.
            let difference = paged.resident_bytes() as i64 - counted as i64;
            rows.push([
                ("tablespace", space.name().to_owned().into()),
                ("purpose", "paging".into()),
                ("bytes", difference.into()),
            ]);
        }
    }
    let process = tidepool_heap::process_memory();
    // What clients hold is a part of it.
    let mut rest = process.allocated_bytes;
    for (held, bytes, peak) in facts.planner.database().client_memory().rows() {
        let bytes = bytes.min(rest);
        rest -= bytes;
        let purpose = format!("clients: {}", held.name());
        rows.push([("purpose", purpose.into()), ("bytes", bytes.into()), ("bytes_peak", peak.into())]);
    }
    rows.push([("purpose", "process heap".into()), ("bytes", rest.into())]);
    let kept = process.resident_bytes.saturating_sub(process.allocated_bytes);
    rows.push([("purpose", "process heap free".into()), ("bytes", kept.into())]);
    if let Some(resident) = resident_bytes() {
        let tablespaces: u64 = spaces.list().iter().map(|space| space.usage().resident_bytes).sum();
        // Program text, stacks, and what the kernel counts differently from the owners.
        let other = resident as i64 - tablespaces as i64 - process.resident_bytes.max(process.allocated_bytes) as i64;
        rows.push([("purpose", "process other".into()), ("bytes", other.into())]);
    }
}

/// What a column's segments add up to. What turns out to be damaged is left out of all but the encoded bytes.
#[derive(Default)]
struct Sizes {
    raw: u64,
    encoded: u64,
    encodings: BTreeMap<String, u64>,
}

impl Sizes {
    fn add(&mut self, segment: &Segment) {
        self.raw += segment.raw_bytes().unwrap_or_default();
        self.encoded += segment.encoded_bytes();
        if let Ok(encoding) = segment.encoding() {
            *self.encodings.entry(format!("{encoding:?}")).or_default() += 1;
        }
    }

    /// `Dictionary 6, Constant 1`: encodings with the number of segments, most first.
    fn encodings(&self) -> String {
        let mut list: Vec<(&String, &u64)> = self.encodings.iter().collect();
        list.sort_by(|a, b| b.1.cmp(a.1).then(a.0.cmp(b.0)));
        list.iter().map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
    }
}

fn tables(facts: &SessionFacts, rows: &mut Rows) {
    for table in facts.version.versions() {
        let mut total = Sizes::default();
        let mut columns: Vec<Sizes> = table.def.columns.iter().map(|_| Sizes::default()).collect();
        for group in &table.row_groups {
            for (segment, column) in group.segments().iter().zip(&mut columns) {
                column.add(segment);
                total.add(segment);
            }
        }
        let delta_rows = table.delta_rows() as usize;
        push_table(facts, rows, &table, None, delta_rows, &total);
        for (index, sizes) in columns.iter().enumerate() {
            push_table(facts, rows, &table, Some(index), delta_rows, sizes);
        }
    }
}

fn push_table(
    facts: &SessionFacts,
    rows: &mut Rows,
    table: &TableVersion,
    column: Option<usize>,
    delta_rows: usize,
    sizes: &Sizes,
) {
    let definition = column.map(|index| &table.def.columns[index]);
    let tablespace = column.map_or(table.placement.main.as_str(), |index| table.placement.column(index));
    rows.push([
        ("table_name", table.def.name.clone().into()),
        ("column_name", definition.map(|column| column.name.clone()).into()),
        ("type", definition.map(|column| column.sql_type.to_string()).into()),
        ("tablespace", tablespace.to_owned().into()),
        ("delta_tablespace", table.placement.delta.clone().into()),
        ("rows", table.statistics().rows.into()),
        ("rows_delta", delta_rows.into()),
        ("row_groups", table.row_groups.len().into()),
        ("bytes_raw", sizes.raw.into()),
        ("bytes_encoded", sizes.encoded.into()),
        ("bytes_delta", column.is_none().then(|| table_bytes(table).1).into()),
        ("encodings", sizes.encodings().into()),
        ("schema_name", table_schema(facts, table.table()).into()),
    ]);
}

const NS_PER_MS: f64 = 1e6;

fn tablespaces(facts: &SessionFacts, rows: &mut Rows) {
    for space in facts.planner.database().tablespaces().list() {
        let usage = space.usage();
        let config = space.config();
        let profile = config.profile.as_ref();
        // Of several devices: as an access to all of them by weight sees it.
        let model = space.pacer().map(|pacer| pacer.model());
        let latency = |of_profile: Option<f64>, of_model: fn(&CostModel) -> f64| model.map(of_model).or(of_profile);
        let paced = space.pacer().map(|pacer| pacer.counters());
        rows.push([
            ("name", space.name().to_owned().into()),
            ("location", config.location.to_string().into()),
            ("bytes_size", usage.size_bytes.into()),
            ("bytes_used", usage.used_bytes.into()),
            ("bytes_resident", usage.resident_bytes.into()),
            ("profile", config.profile_names().into()),
            (
                "read_latency_ns",
                latency(profile.map(|profile| profile.read_latency_ns), CostModel::read_latency_ns).into(),
            ),
            (
                "write_latency_ns",
                latency(profile.map(|profile| profile.write_latency_ns), CostModel::write_latency_ns).into(),
            ),
            (
                "read_gb_per_s",
                latency(profile.map(|profile| profile.read_gb_per_s), |model| 1.0 / model.transfer_ns(1.0, 0.0)).into(),
            ),
            (
                "write_gb_per_s",
                latency(profile.map(|profile| profile.write_gb_per_s), |model| 1.0 / model.transfer_ns(0.0, 1.0))
                    .into(),
            ),
            ("bytes_read", paced.map(|counters| counters.bytes_read).into()),
            ("bytes_written", paced.map(|counters| counters.bytes_written).into()),
            ("lines", paced.map(|counters| counters.lines).into()),
            ("stall_ms", paced.map(|counters| counters.stall_ns as f64 / NS_PER_MS).into()),
        ]);
    }
}

fn pacing(facts: &SessionFacts, rows: &mut Rows) {
    for space in facts.planner.database().tablespaces().list() {
        let Some(profile) = space.config().profile_names() else { continue };
        for (purpose, counters) in space.paced() {
            rows.push([
                ("tablespace", space.name().to_owned().into()),
                ("profile", profile.clone().into()),
                ("purpose", purpose.name().into()),
                ("bytes_read", counters.bytes_read.into()),
                ("bytes_written", counters.bytes_written.into()),
                ("lines", counters.lines.into()),
                ("link_bytes_read", counters.link_bytes_read.into()),
                ("link_bytes_written", counters.link_bytes_written.into()),
                ("stall_ms", (counters.stall_ns as f64 / NS_PER_MS).into()),
            ]);
        }
    }
}

fn paging(facts: &SessionFacts, rows: &mut Rows) {
    for space in facts.planner.database().tablespaces().list() {
        let Some(paged) = space.paged() else { continue };
        let mut places = Places::default();
        for purpose in Purpose::ALL {
            let of = paged.places(purpose as usize);
            places.local += of.local;
            places.remote += of.remote;
        }
        let counters = paged.counters();
        let node = paged.node();
        let ms = |ns: u64| ns as f64 / NS_PER_MS;
        rows.push([
            ("tablespace", space.name().to_owned().into()),
            ("node_up", node.map(|node| node.is_up).into()),
            ("node_losses", node.map(|node| node.losses).into()),
            ("node_emptied", node.map(|node| node.emptied).into()),
            ("fetched_from_copies", node.map(|node| node.fetched_from_copies).into()),
            ("refilled", node.map(|node| node.refilled).into()),
            ("exchanges", node.map(|node| node.exchanges).into()),
            ("profile", space.config().profile.as_ref().map(|profile| profile.name.clone()).into()),
            ("bytes_size", space.size_bytes().into()),
            ("bytes_cache", paged.cache_bytes().into()),
            ("bytes_local", places.local.into()),
            ("bytes_remote", places.remote.into()),
            ("bytes_resident", paged.resident_bytes().into()),
            ("faults", counters.faults.into()),
            ("fetched", counters.fetched.into()),
            ("zeroed", counters.zeroed.into()),
            ("soft", counters.soft.into()),
            ("unprotected", counters.unprotected.into()),
            ("evicted", counters.evicted.into()),
            ("written_back", counters.written_back.into()),
            ("modelled_ms", ms(counters.modelled_ns).into()),
            ("mechanism_ms", ms(counters.mechanism_ns).into()),
            ("waited_ms", ms(counters.waited_ns).into()),
            ("shared_ms", ms(counters.shared_ns).into()),
            ("mechanism_fault_ns", paged.mechanism().fault_ns.into()),
            ("handling", paged.handling().name().into()),
        ]);
    }
}

/// `None` for never, which is recorded as 0.
fn time(micros: i64) -> Option<DateTime<Utc>> {
    (micros > 0).then(|| DateTime::from_timestamp_micros(micros)).flatten()
}

fn access(facts: &SessionFacts, rows: &mut Rows) {
    let workload = facts.planner.database().workload();
    for table in facts.version.versions() {
        let record = workload.tables.get(&table.def.id).cloned().unwrap_or_default();
        let columns: Vec<ColumnRecord> = (0..table.def.columns.len()).map(|column| record.column(column)).collect();
        let usage = table.column_usage();
        let mut total = ColumnRecord { scans: record.scans, last_us: record.last_us, ..ColumnRecord::default() };
        for column in &columns {
            total.access += column.access;
        }
        let mut push = |column: Option<usize>, record: &ColumnRecord, bytes_encoded: u64| {
            let tablespace = column.map_or(table.placement.main.as_str(), |index| table.placement.column(index));
            rows.push([
                ("table_name", table.def.name.clone().into()),
                ("column_name", column.map(|index| table.def.columns[index].name.clone()).into()),
                ("scans", record.scans.into()),
                ("rows", record.access.rows.into()),
                ("bytes_sequential", record.access.bytes_sequential.into()),
                ("runs", record.access.runs.into()),
                ("lines_random", record.access.lines_random.into()),
                ("bytes_delta", record.access.delta_bytes.into()),
                ("bytes_encoded", bytes_encoded.into()),
                ("tablespace", tablespace.to_owned().into()),
                ("last_access", time(record.last_us).into()),
                ("schema_name", table_schema(facts, table.table()).into()),
            ]);
        };
        push(None, &total, usage.iter().map(|column| column.encoded_bytes).sum());
        for (index, (record, usage)) in columns.iter().zip(&usage).enumerate() {
            push(Some(index), record, usage.encoded_bytes);
        }
    }
}

fn index_access(facts: &SessionFacts, rows: &mut Rows) {
    let workload = facts.planner.database().workload();
    for table in facts.version.versions() {
        let record = workload.tables.get(&table.def.id);
        for def in &table.def.indexes {
            let IndexRecord { scans, last_us, used } = record.map(|table| table.index(def.id)).unwrap_or_default();
            let touched = used.touched;
            rows.push([
                ("schema_name", table_schema(facts, table.table()).into()),
                ("table_name", table.def.name.clone().into()),
                ("index_name", def.name.clone().into()),
                ("scans", scans.into()),
                ("lookups", used.lookups.into()),
                ("entries", used.entries.into()),
                ("searches", touched.leaves.into()),
                ("writes", touched.writes.into()),
                ("lines_inner", touched.inner_lines.into()),
                ("lines_leaf", touched.leaf_lines().into()),
                ("lines_written", touched.written_lines().into()),
                ("bytes_sequential", touched.copied_bytes.into()),
                ("runs", touched.copies.into()),
                ("bytes_index", table.table().index(def.id).map(|index| index.tree().memory().held_bytes).into()),
                ("tablespace", table.table().index_tablespace(def).to_owned().into()),
                ("last_access", time(last_us).into()),
            ]);
        }
    }
}

fn queries(facts: &SessionFacts, rows: &mut Rows) {
    for query in facts.planner.queries() {
        let heap = query.heap_bytes();
        let scans = query.scan_bytes();
        let end = query.end();
        let elapsed = end.unwrap_or_else(Utc::now) - query.start;
        let mut names: Vec<&str> =
            heap.iter().map(|row| row.0.as_str()).chain(scans.iter().map(|read| read.tablespace.as_str())).collect();
        names.sort_unstable();
        names.dedup();
        rows.push([
            ("id", query.id.0.into()),
            ("pid", query.session_id.into()),
            ("user_name", query.user.clone().into()),
            ("state", query.state().name().into()),
            ("query", super::roles::shown_text(facts, &query.user, &query.text).into()),
            ("start_time", query.start.into()),
            ("end_time", end.into()),
            ("elapsed_ms", (elapsed.num_microseconds().unwrap_or(i64::MAX) as f64 / 1e3).into()),
            ("rows", query.rows.load(Ordering::Relaxed).into()),
            ("heap_bytes", heap.iter().map(|row| row.1).sum::<u64>().into()),
            ("heap_bytes_peak", heap.iter().map(|row| row.2).sum::<u64>().into()),
            ("heap_stall_ms", (query.heap_stall_ns() as f64 / NS_PER_MS).into()),
            ("scan_bytes", scans.iter().map(|read| read.bytes).sum::<u64>().into()),
            ("scan_stall_ms", (scans.iter().map(|read| read.stall_ns).sum::<u64>() as f64 / NS_PER_MS).into()),
            ("tablespaces", names.join(", ").into()),
        ]);
    }
}

fn progress(facts: &SessionFacts, rows: &mut Rows) {
    for progress in facts.planner.database().progress().list() {
        let total = progress.bytes_total.load(Ordering::Relaxed);
        let done = progress.bytes_done.load(Ordering::Relaxed);
        // A stream from the client has no known end.
        let known = total > 0;
        rows.push([
            ("id", progress.id.into()),
            ("command", progress.command.clone().into()),
            ("table_name", progress.table.clone().into()),
            ("bytes_total", known.then_some(total).into()),
            ("bytes_done", done.into()),
            ("rows_done", progress.rows_done.load(Ordering::Relaxed).into()),
            ("percent", if known { Value::Float(100.0 * done as f64 / total as f64) } else { Value::Null }),
        ]);
    }
}
