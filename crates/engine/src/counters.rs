//! What a part of a plan did, added up over its workers: for `EXPLAIN ANALYZE`.

use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct Counters {
    pub rows_in: AtomicU64,
    pub rows_out: AtomicU64,
    /// Time inside it, of all workers together.
    pub ns: AtomicU64,
}

/// A worker's own, until it hands them on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub rows_in: u64,
    pub rows_out: u64,
    pub ns: u64,
}

impl Counters {
    pub fn add(&self, tally: &mut Tally) {
        let Tally { rows_in, rows_out, ns } = std::mem::take(tally);
        self.rows_in.fetch_add(rows_in, Ordering::Relaxed);
        self.rows_out.fetch_add(rows_out, Ordering::Relaxed);
        self.ns.fetch_add(ns, Ordering::Relaxed);
    }

    pub fn get(&self) -> Tally {
        Tally {
            rows_in: self.rows_in.load(Ordering::Relaxed),
            rows_out: self.rows_out.load(Ordering::Relaxed),
            ns: self.ns.load(Ordering::Relaxed),
        }
    }
}
