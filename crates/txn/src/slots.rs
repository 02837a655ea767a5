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
//!
//! # Where slots are
//!
//! A slot is four words. They are in this process's memory, or, where several hosts run transactions over one pod, in
//! memory that all of them reach ([`SlotMemory`]). Everything above goes by the words alone, so it holds across hosts,
//! too. Snapshots that are held apart from a worker are counted in this process: only the least of them is published.

use crate::sync::{AtomicU64, Mutex, Ordering, lock};
use crate::tag::{HOST_SHIFT, SEQUENCE_MASK, TS_MASK, Tag};
use std::sync::{Arc, OnceLock};

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

/// The words of a slot: sequence number, state, snapshot, and the least snapshot that is held apart from the worker.
pub type SlotWords = [AtomicU64; 4];

const SEQUENCE: usize = 0;
const STATE: usize = 1;
const SNAPSHOT: usize = 2;
const HELD: usize = 3;

/// Slots of all hosts that run transactions over one memory, and what these tell each other beside.
///
/// A new slot has sequence number 1, state 0, and [`NO_SNAPSHOT`] in the other two words.
pub trait SlotMemory: std::fmt::Debug + Send + Sync {
    /// Hosts that there may be.
    fn hosts(&self) -> usize;

    /// Slots of each host.
    fn workers(&self) -> usize;

    /// # Panics
    /// Where there is no such slot.
    fn slot(&self, host: usize, worker: usize) -> &SlotWords;

    /// Below this a host has no snapshot in use, and never will: [`NO_SNAPSHOT`] of one that runs no transactions.
    fn horizon(&self, host: usize) -> &AtomicU64;

    /// Returns when a slot's words, as they are now, outlive the host that wrote them.
    fn make_durable(&self, host: usize, worker: usize);
}

/// In the place of a snapshot: there is none.
pub const NO_SNAPSHOT: u64 = NONE;

/// A host among those that share a [`SlotMemory`].
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub memory: Arc<dyn SlotMemory>,
    pub host: usize,
}

/// A slot's words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'s>(&'s SlotWords);

impl<'s> Slot<'s> {
    #[inline]
    pub fn state(self) -> &'s AtomicU64 {
        &self.0[STATE]
    }

    /// The least snapshot that the worker itself reads under, or `NONE`.
    #[inline]
    pub fn snapshot(self) -> &'s AtomicU64 {
        &self.0[SNAPSHOT]
    }

    /// The least snapshot that is held apart from the worker, or `NONE`.
    #[inline]
    pub fn held(self) -> &'s AtomicU64 {
        &self.0[HELD]
    }

    #[inline]
    pub fn sequence(self) -> u64 {
        self.0[SEQUENCE].load(Ordering::Acquire) & SEQUENCE_MASK
    }

    /// Moves on to the next transaction. True when somebody waited for this one's end.
    pub fn end_sequence(self, next: u64) -> bool {
        // Release: whoever finds the tag gone finds its versions stamped.
        let before = self.0[SEQUENCE].swap(next & SEQUENCE_MASK, Ordering::AcqRel);
        // After it: see the first invariant.
        self.state().store(RUNNING, Ordering::Release);
        before & WAITED != 0
    }

    /// False when the transaction is over.
    pub fn mark_waited(self, tag: Tag) -> bool {
        let mut found = self.0[SEQUENCE].load(Ordering::Acquire);
        loop {
            if found & SEQUENCE_MASK != tag.sequence() {
                return false;
            }
            match self.0[SEQUENCE].compare_exchange_weak(found, found | WAITED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => found = now,
            }
        }
    }

    pub fn is_current(self, tag: Tag) -> bool {
        self.sequence() == tag.sequence()
    }

    /// `tag` came from a version, or another word that its transaction published.
    #[inline]
    pub fn status(self, tag: Tag) -> Status {
        // Acquire, so that the sequence number is not older than the state. As that one is: the versions are stamped.
        let state = self.state().load(Ordering::Acquire);
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
    pub fn raise(self, m: u64, ts: u64) -> bool {
        self.state().compare_exchange(committing(m), committing(ts), Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The least snapshot in use, or `NONE`.
    pub fn oldest(self) -> u64 {
        // Acquire: what was read under a snapshot that is gone was read before.
        self.snapshot().load(Ordering::Acquire).min(self.held().load(Ordering::Acquire))
    }
}

/// A slot of this process alone, and the snapshots that are used apart from its worker: of cursors, of other threads. Two
/// cache lines, as processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Own {
    words: SlotWords,
    held: Mutex<Vec<u64>>,
}

impl Own {
    fn new() -> Own {
        let words = [AtomicU64::new(1), AtomicU64::new(RUNNING), AtomicU64::new(NONE), AtomicU64::new(NONE)];
        Own { words, held: Mutex::default() }
    }
}

/// All slots that there may be. Those of this process are made as they are needed and never given up.
#[derive(Debug)]
pub(crate) struct Slots {
    chunks: Box<[OnceLock<Box<[Own]>>]>,
    member: Option<Member>,
}

impl Slots {
    pub fn new() -> Slots {
        Slots { chunks: (0..SLOTS_MAX / CHUNK).map(|_| OnceLock::new()).collect(), member: None }
    }

    pub fn of(member: Member) -> Slots {
        Slots { member: Some(member), ..Slots::new() }
    }

    pub fn member(&self) -> Option<&Member> {
        self.member.as_ref()
    }

    /// The first slot that is this process's, and how many are.
    pub fn own(&self) -> std::ops::Range<usize> {
        match &self.member {
            None => 0..SLOTS_MAX,
            Some(Member { memory, host }) => {
                let first = host << HOST_SHIFT;
                first..first + memory.workers().min(SLOTS_MAX)
            }
        }
    }

    #[inline]
    pub fn get(&self, index: usize) -> Slot<'_> {
        match &self.member {
            None => Slot(&self.near(index).words),
            Some(member) => Slot(member.memory.slot(index >> HOST_SHIFT, index & ((1 << HOST_SHIFT) - 1))),
        }
    }

    #[inline]
    fn near(&self, index: usize) -> &Own {
        let chunk = self.chunks[index / CHUNK].get_or_init(|| (0..CHUNK).map(|_| Own::new()).collect());
        &chunk[index % CHUNK]
    }

    fn held_list(&self, index: usize) -> &Mutex<Vec<u64>> {
        &self.near(index - self.own().start).held
    }

    /// `ts` is in use through `snapshot` or `held` while this is called, for one of this process's slots.
    pub fn hold(&self, index: usize, ts: u64) {
        let mut list = lock(self.held_list(index));
        list.push(ts);
        self.get(index).held().fetch_min(ts, Ordering::Relaxed);
    }

    pub fn let_go(&self, index: usize, ts: u64) {
        let mut list = lock(self.held_list(index));
        if let Some(at) = list.iter().position(|held| *held == ts) {
            list.swap_remove(at);
        }
        let oldest = list.iter().copied().min().unwrap_or(NONE);
        // Release: reads under it come before.
        self.get(index).held().store(oldest, Ordering::Release);
    }
}
