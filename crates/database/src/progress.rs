//! Progress of long commands, seen in `tidepool.progress` and by the CLI's progress bars.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tidepool_heap::QueryHeap;

#[derive(Debug)]
pub struct Progress {
    pub id: u64,
    /// `COPY FROM`, `SET TABLESPACE`, …
    pub command: String,
    pub table: String,
    /// 0 when unknown.
    pub bytes_total: AtomicU64,
    pub bytes_done: AtomicU64,
    pub rows_done: AtomicU64,
}

/// One database's long commands.
#[derive(Debug, Default)]
pub struct ProgressRegistry {
    running: Mutex<Vec<Weak<Progress>>>,
    started: AtomicU64,
}

impl ProgressRegistry {
    /// Listed until the last `Arc` of it drops.
    pub fn start(&self, command: &str, table: &str, bytes_total: u64) -> Arc<Progress> {
        QueryHeap::outside(|| {
            let progress = Arc::new(Progress {
                id: self.started.fetch_add(1, Ordering::Relaxed) + 1,
                command: command.to_owned(),
                table: table.to_owned(),
                bytes_total: AtomicU64::new(bytes_total),
                bytes_done: AtomicU64::new(0),
                rows_done: AtomicU64::new(0),
            });
            let mut running = self.running.lock();
            running.retain(|weak| weak.strong_count() > 0);
            running.push(Arc::downgrade(&progress));
            progress
        })
    }

    /// What runs now, oldest first.
    pub fn list(&self) -> Vec<Arc<Progress>> {
        self.running.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

impl Progress {
    pub fn add(&self, bytes: u64, rows: u64) {
        self.bytes_done.fetch_add(bytes, Ordering::Relaxed);
        self.rows_done.fetch_add(rows, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_listed_while_it_runs() {
        let registry = ProgressRegistry::default();
        let progress = registry.start("COPY FROM", "listed", 100);
        progress.add(10, 2);
        let rows = registry.list().iter().map(|listed| listed.rows_done.load(Ordering::Relaxed)).collect::<Vec<_>>();
        assert_eq!(rows, [2]);
        drop(progress);
        assert!(registry.list().is_empty());
    }
}
