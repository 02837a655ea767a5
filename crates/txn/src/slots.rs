//! Slots: the record of a transaction, one for each worker, and what others learn from it.
//!
//! # States
//!
//! | state | the transaction |
//! | --- | --- |
//! | running | is under way, or there is none |
//! | committing (*m*) | will have a timestamp after *m*, if any |
//! | committed (*c*) | has the timestamp *c*; its versions may not show it yet |
//! | aborted | is taking its versions back |
//!
//! Its worker alone moves a slot from state to state. Others only raise *m*, and mark that somebody waits for the end.
//!
//! # Invariants
//!
//! * The sequence number moves on when no version has the old tag any more, and before the state changes again. So whoever
//!   reads a state and *then* the tag's own sequence number has read a state of that transaction: it cannot have been a
//!   later one's, and an earlier one's is ruled out by how the tag was come by.
//! * Each *m* that a slot's worker sets is above every *m* and *c* that the slot ever had. So a compare-and-swap that finds
//!   the *m* it expects has met the same transaction.

use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::tag::{SEQUENCE_MASK, TS_MASK, Tag};
use std::sync::OnceLock;

/// Transactions that can be under way at a time, and sessions. PostgreSQL's `max_connections` is 100 unless raised; each of
/// these costs 128 bytes once it was used.
pub const SLOTS_MAX: usize = 8192;

/// Slots that are made together.
const CHUNK: usize = if cfg!(loom) { 4 } else { 64 };

/// No snapshot.
pub(crate) const NONE: u64 = u64::MAX;

pub(crate) const RUNNING: u64 = 0;
const COMMITTING: u64 = 1 << 62;
const COMMITTED: u64 = 2 << 62;
pub(crate) const ABORTED: u64 = 3 << 62;
const STATE_MASK: u64 = 3 << 62;

/// Beside the sequence number: somebody waits for the transaction's end.
const WAITED: u64 = 1 << 63;

pub(crate) fn committing(m: u64) -> u64 {
    debug_assert!(m <= TS_MASK);
    COMMITTING | m
}

pub(crate) fn committed(c: u64) -> u64 {
    debug_assert!(c < TS_MASK);
    COMMITTED | c
}

/// The timestamp within a state.
pub(crate) fn ts_of(state: u64) -> u64 {
    state & TS_MASK
}

/// What a transaction was found doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Running,
    /// A timestamp after this one is to be expected.
    Committing(u64),
    Committed(u64),
    Aborted,
    /// Over: its versions say since when they are there.
    Gone,
}

/// Two cache lines, as processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Slot {
    /// Of the present transaction; and `WAITED`.
    sequence: AtomicU64,
    pub state: AtomicU64,
    /// The least snapshot that the worker itself reads under, or `NONE`.
    pub snapshot: AtomicU64,
    /// The least of `held_list`, or `NONE`.
    pub held: AtomicU64,
    /// Snapshots that are used apart from the worker: of cursors, of other threads.
    held_list: Mutex<Vec<u64>>,
}

impl Slot {
    fn new() -> Slot {
        Slot {
            sequence: AtomicU64::new(1),
            state: AtomicU64::new(RUNNING),
            snapshot: AtomicU64::new(NONE),
            held: AtomicU64::new(NONE),
            held_list: Mutex::new(Vec::new()),
        }
    }

    pub fn sequence(&self) -> u64 {
        self.sequence.load(Ordering::Acquire) & SEQUENCE_MASK
    }

    /// Moves on to the next transaction. True when somebody waited for this one's end.
    pub fn end_sequence(&self, next: u64) -> bool {
        // Release: whoever finds the tag gone finds its versions stamped.
        let before = self.sequence.swap(next & SEQUENCE_MASK, Ordering::AcqRel);
        // After it: see the first invariant.
        self.state.store(RUNNING, Ordering::Release);
        before & WAITED != 0
    }

    /// False when the transaction is over.
    pub fn mark_waited(&self, tag: Tag) -> bool {
        let mut found = self.sequence.load(Ordering::Acquire);
        loop {
            if found & SEQUENCE_MASK != tag.sequence() {
                return false;
            }
            match self.sequence.compare_exchange_weak(found, found | WAITED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => found = now,
            }
        }
    }

    pub fn is_current(&self, tag: Tag) -> bool {
        self.sequence() == tag.sequence()
    }

    /// `tag` came from a version, or another word that its transaction published.
    #[inline]
    pub fn status(&self, tag: Tag) -> Status {
        // Acquire, so that the sequence number is not older than the state. As that one is: the versions are stamped.
        let state = self.state.load(Ordering::Acquire);
        if self.sequence() != tag.sequence() {
            return Status::Gone;
        }
        match state & STATE_MASK {
            RUNNING => Status::Running,
            COMMITTING => Status::Committing(ts_of(state)),
            COMMITTED => Status::Committed(ts_of(state)),
            _ => Status::Aborted,
        }
    }

    /// Sees to it that a transaction that was found committing after `m` commits after `ts`, if it was not too late.
    #[inline]
    pub fn raise(&self, m: u64, ts: u64) -> bool {
        self.state.compare_exchange(committing(m), committing(ts), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The least snapshot in use, or `NONE`.
    pub fn oldest(&self) -> u64 {
        // Acquire: what was read under a snapshot that is gone was read before.
        self.snapshot.load(Ordering::Acquire).min(self.held.load(Ordering::Acquire))
    }

    /// `ts` is in use through `snapshot` or `held` while this is called.
    pub fn hold(&self, ts: u64) {
        let mut list = lock(&self.held_list);
        list.push(ts);
        self.held.fetch_min(ts, Ordering::Relaxed);
    }

    pub fn let_go(&self, ts: u64) {
        let mut list = lock(&self.held_list);
        if let Some(at) = list.iter().position(|held| *held == ts) {
            list.swap_remove(at);
        }
        let oldest = list.iter().copied().min().unwrap_or(NONE);
        // Release: reads under it come before.
        self.held.store(oldest, Ordering::Release);
    }
}

/// All slots that there may be, made as they are needed and never given up.
#[derive(Debug)]
pub(crate) struct Slots {
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
}

impl Slots {
    pub fn new() -> Slots {
        Slots { chunks: (0..SLOTS_MAX / CHUNK).map(|_| OnceLock::new()).collect() }
    }

    #[inline]
    pub fn get(&self, index: usize) -> &Slot {
        let chunk = self.chunks[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Slot::new()).collect());
        &chunk[index % CHUNK]
    }
}
