//! The recorded workload: what statements read of each column, for `tidepool.access` and the placement advisor.
//!
//! Scans count for themselves (`TableScan::metrics`); a statement's counts are added here once, when it ends. They are kept
//! over a restart by `CHECKPOINT` and a graceful stop.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tidepool_base::TableId;
use tidepool_heap::QueryHeap;
use tidepool_table::{ColumnAccess, TableScan};

/// One column in the recorded workload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ColumnRecord {
    /// Scans that read it.
    pub scans: u64,
    /// End of the last of their statements, microseconds since 1970-01-01 UTC.
    pub last_us: i64,
    pub access: ColumnAccess,
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
}

impl TableRecord {
    pub fn column(&self, position: usize) -> ColumnRecord {
        self.columns.get(position).copied().unwrap_or_default()
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
            for scan in scans {
                workload.tables.entry(scan.version().def.id).or_default().add(scan, now);
            }
        });
    }

    pub fn workload(&self) -> Workload {
        self.0.lock().clone()
    }

    /// Forgets everything: the record begins now.
    pub fn reset(&self) {
        QueryHeap::outside(|| *self.0.lock() = Workload { since_us: now_us(), ..Workload::default() });
    }

    pub(crate) fn forget_missing(&self, exists: impl Fn(TableId) -> bool) {
        self.0.lock().tables.retain(|table, _| exists(*table));
    }
}
