//! What a part of a plan did, added up over its workers: for `EXPLAIN ANALYZE`.

use crate::observed::Observed;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

#[derive(Debug, Default)]
pub struct Counters {
    pub rows_in: AtomicU64,
    pub rows_out: AtomicU64,
    /// Time inside it, of all workers together.
    pub ns: AtomicU64,
    /// Set where somebody looks.
    observed: OnceLock<Arc<Observed>>,
}

/// A worker's own, until it hands them on.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub rows_in: u64,
    pub rows_out: u64,
    pub ns: u64,
}

impl Counters {
    /// From the first time on that somebody looks, as of the heap that this thread is in then.
    pub fn observe(&self) -> Arc<Observed> {
        Arc::clone(self.observed.get_or_init(Observed::here))
    }

    /// What it was seen to do, if somebody looked.
    pub fn observed(&self) -> Option<&Observed> {
        self.observed.get().map(Arc::as_ref)
    }

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
