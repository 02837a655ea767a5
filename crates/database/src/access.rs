//! The recorded workload: what statements read of each column and each index, for `tidepool.access`,
//! `tidepool.index_access` and the placement advisor.
//!
//! Scans count for themselves (`TableScan::metrics`); a statement's counts are added here once, when it ends. What writes and
//! planners touch of an index is counted there (`TableIndex::take_use`), and taken in when somebody looks, and before the
//! index goes. All is kept over a restart by `CHECKPOINT` and a graceful stop.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::TableId;
use tidepool_heap::QueryHeap;
use tidepool_table::{ColumnAccess, IndexUse, TableDef, TableScan};

/// One column in the recorded workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ColumnRecord {
    /// Scans that read it.
    pub scans: u64,
    /// End of the last of their statements, microseconds since 1970-01-01 UTC.
    pub last_us: i64,
    pub access: ColumnAccess,
}

/// One index in the recorded workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct IndexRecord {
    /// Scans that found their rows through it.
    pub scans: u64,
    /// End of the last of their statements, microseconds since 1970-01-01 UTC.
    pub last_us: i64,
    pub used: IndexUse,
}

/// One table in the recorded workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TableRecord {
    pub scans: u64,
    pub last_us: i64,
    /// Time that scanning threads were at work between batches, ns, side by side counted once. What a device transfers
    /// meanwhile, nobody waits for.
    pub work_ns: u64,
    /// By position; columns that were never read may be missing at the end.
    pub columns: Vec<ColumnRecord>,
    /// Those that were used.
    #[serde(default)]
    pub indexes: BTreeMap<TableId, IndexRecord>,
}

impl TableRecord {
    pub fn column(&self, position: usize) -> ColumnRecord {
        self.columns.get(position).copied().unwrap_or_default()
    }

    pub fn index(&self, id: TableId) -> IndexRecord {
        self.indexes.get(&id).copied().unwrap_or_default()
    }

    fn add(&mut self, scan: &TableScan, now_us: i64) {
        let metrics = scan.metrics();
        self.scans += 1;
        self.last_us = now_us;
        self.work_ns += metrics.threads_ns / metrics.readers.max(1);
        if self.columns.len() < metrics.columns.len() {
            self.columns.resize(metrics.columns.len(), ColumnRecord::default());
        }
        for (record, access) in self.columns.iter_mut().zip(metrics.columns) {
            if !access.is_empty() {
                record.scans += 1;
                record.last_us = now_us;
                record.access += access;
            }
        }
        if let Some((index, used)) = metrics.index {
            let record = self.indexes.entry(index).or_default();
            record.scans += 1;
            record.last_us = now_us;
            record.used += used;
        }
    }
}

impl TableRecord {
    /// A version comes as a whole, and of main each value by itself.
    fn add_direct(&mut self, read: &DirectRead<'_>, now_us: i64) {
        self.scans += 1;
        self.last_us = now_us;
        let last = read.columns.iter().max().map_or(0, |last| last + 1);
        if self.columns.len() < last {
            self.columns.resize(last, ColumnRecord::default());
        }
        let rows = read.main_rows + read.delta_rows;
        for (place, column) in read.columns.iter().enumerate().filter(|_| rows > 0) {
            let record = &mut self.columns[*column];
            record.scans += 1;
            record.last_us = now_us;
            let count = read.columns.len() as u64;
            // The first has what cannot be divided.
            let rest = if place == 0 { read.delta_bytes % count } else { 0 };
            record.access += ColumnAccess {
                rows,
                lines_random: read.main_rows,
                delta_bytes: read.delta_bytes / count + rest,
                delta_runs: read.delta_rows,
                ..ColumnAccess::default()
            };
        }
        let record = self.indexes.entry(read.index).or_default();
        record.scans += 1;
        record.last_us = now_us;
        record.used += read.used;
    }
}

/// What statements have read since the record began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Microseconds since 1970-01-01 UTC.
    pub since_us: i64,
    /// Statements that read a table.
    pub statements: u64,
    /// From their beginnings to their ends, ns, added up.
    pub elapsed_ns: u64,
    /// Stalls by pacing within their scans and query heaps, ns, all threads added up.
    pub stall_ns: u64,
    pub tables: BTreeMap<TableId, TableRecord>,
}

/// What a statement read of one table, row by row, for the recorded workload.
#[derive(Clone, Copy, Debug)]
pub struct DirectRead<'a> {
    pub table: TableId,
    /// Positions of the columns that it read.
    pub columns: &'a [usize],
    /// Rows read from main, and from delta with the bytes of their versions.
    pub main_rows: u64,
    pub delta_rows: u64,
    pub delta_bytes: u64,
    pub index: TableId,
    pub used: IndexUse,
}

impl Workload {
    /// One statement's scans alone.
    pub fn of_scans<'a>(scans: impl IntoIterator<Item = &'a Arc<TableScan>>) -> Workload {
        let mut workload = Workload::default();
        for scan in scans {
            workload.tables.entry(scan.version().def.id).or_default().add(scan, 0);
        }
        workload
    }
}

impl std::ops::AddAssign<&Workload> for Workload {
    /// As if the other's statements had been recorded here too.
    fn add_assign(&mut self, other: &Workload) {
        self.statements += other.statements;
        self.elapsed_ns += other.elapsed_ns;
        self.stall_ns += other.stall_ns;
        for (id, table) in &other.tables {
            let total = self.tables.entry(*id).or_default();
            total.scans += table.scans;
            total.last_us = total.last_us.max(table.last_us);
            total.work_ns += table.work_ns;
            if total.columns.len() < table.columns.len() {
                total.columns.resize(table.columns.len(), ColumnRecord::default());
            }
            for (total, column) in total.columns.iter_mut().zip(&table.columns) {
                total.scans += column.scans;
                total.last_us = total.last_us.max(column.last_us);
                total.access += column.access;
            }
            for (id, index) in &table.indexes {
                let total = total.indexes.entry(*id).or_default();
                total.scans += index.scans;
                total.last_us = total.last_us.max(index.last_us);
                total.used += index.used;
            }
        }
    }
}

/// The one record of a database.
#[derive(Debug)]
pub struct AccessLog(Mutex<Workload>);

fn now_us() -> i64 {
    chrono::Utc::now().timestamp_micros()
}

impl AccessLog {
    pub(crate) fn new(saved: Option<Workload>) -> AccessLog {
        let workload = saved.unwrap_or_else(|| Workload { since_us: now_us(), ..Workload::default() });
        AccessLog(Mutex::new(workload))
    }

    /// Adds a statement that has ended. Nothing if it read no table.
    pub fn add(&self, scans: &[Arc<TableScan>], elapsed: Duration, stall_ns: u64) {
        if scans.is_empty() {
            return;
        }
        // Called by threads that may be inside the statement's heap, which this outlives.
        QueryHeap::outside(|| {
            let now = now_us();
            let mut workload = self.0.lock();
            workload.statements += 1;
            workload.elapsed_ns += elapsed.as_nanos() as u64;
            workload.stall_ns += stall_ns;
            // Nothing is to be placed for good of a table that ends with its session.
            for scan in scans.iter().filter(|scan| !scan.version().def.is_temporary()) {
                workload.tables.entry(scan.version().def.id).or_default().add(scan, now);
            }
        });
    }

    pub(crate) fn record(&self, reads: &[DirectRead<'_>], elapsed: Duration) {
        QueryHeap::outside(|| {
            let now = now_us();
            let mut workload = self.0.lock();
            workload.statements += 1;
            workload.elapsed_ns += elapsed.as_nanos() as u64;
            for read in reads.iter().filter(|read| !read.table.is_temporary()) {
                workload.tables.entry(read.table).or_default().add_direct(read, now);
            }
        });
    }

    pub(crate) fn workload(&self) -> Workload {
        self.0.lock().clone()
    }

    /// Forgets everything: the record begins now.
    pub(crate) fn reset(&self) {
        *self.0.lock() = Workload { since_us: now_us(), ..Workload::default() };
    }

    /// What an index was used for since it was last asked.
    pub(crate) fn add_index_use(&self, table: TableId, index: TableId, used: IndexUse) {
        let mut workload = self.0.lock();
        let record = workload.tables.entry(table).or_default();
        record.indexes.entry(index).or_default().used += used;
    }

    /// Forgets tables and indexes that `def` does not know.
    pub(crate) fn forget_missing(&self, def: impl Fn(TableId) -> Option<Arc<TableDef>>) {
        self.0.lock().tables.retain(|table, record| {
            let Some(def) = def(*table) else { return false };
            record.indexes.retain(|id, _| def.indexes.iter().any(|index| index.id == *id));
            true
        });
    }
}
