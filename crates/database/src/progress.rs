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

static REGISTRY: Mutex<Vec<Weak<Progress>>> = Mutex::new(Vec::new());
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Progress {
    /// Registers; unregisters when the last `Arc` outside the registry drops.
    pub fn start(command: &str, table: &str, bytes_total: u64) -> Arc<Progress> {
        QueryHeap::outside(|| Progress::register(command, table, bytes_total))
    }

    fn register(command: &str, table: &str, bytes_total: u64) -> Arc<Progress> {
        let progress = Arc::new(Progress {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            command: command.to_owned(),
            table: table.to_owned(),
            bytes_total: AtomicU64::new(bytes_total),
            bytes_done: AtomicU64::new(0),
            rows_done: AtomicU64::new(0),
        });
        let mut registry = REGISTRY.lock();
        registry.retain(|weak| weak.strong_count() > 0);
        registry.push(Arc::downgrade(&progress));
        progress
    }

    /// What runs now, oldest first.
    pub fn list() -> Vec<Arc<Progress>> {
        REGISTRY.lock().iter().filter_map(Weak::upgrade).collect()
    }

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
        let progress = Progress::start("COPY FROM", "listed", 100);
        progress.add(10, 2);
        let listed = || Progress::list().into_iter().find(|other| other.id == progress.id);
        assert_eq!(listed().map(|other| other.rows_done.load(Ordering::Relaxed)), Some(2));
        let id = progress.id;
        drop(progress);
        assert!(Progress::list().iter().all(|other| other.id != id));
    }
}
