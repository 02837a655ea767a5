//! What all transactions of a database share: the clock, the slots and the horizon.

use crate::retire::SharedQueue;
use crate::slots::{Member, NONE, Slot, SlotMemory, Slots, Status, ts_of};
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, fence, lock};
use crate::tag::{TAG_BIT, Tag};
use crate::wait::Waits;
use crate::{Clock, Worker};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, SqlState};

/// On a line of its own: each is written rarely, and read by all.
#[derive(Debug)]
#[repr(align(128))]
struct Line<T>(T);

/// One a database.
///
/// # The horizon
///
/// No snapshot below the horizon is in use, nor will be. `Worker` publishes a snapshot, then looks at the *candidate*;
/// `advance_horizon` publishes the candidate, then looks at the snapshots; each with a full fence between. So of a snapshot
/// and a candidate above it at least one side sees the other: the snapshot holds the horizon back, or it is refused and
/// drawn again, above the candidate, which was the clock's once.
///
/// # Following
///
/// Where another process's log is followed, the clock stands at the timestamp up to which all of it is applied
/// ([`Transactions::follow`]). So a snapshot is a state that the other process had, whole, and the horizon is one of those
/// snapshots, or the newest. What is above says nothing of how the clock comes by its time, but that it does not go back.
/// Versions are put there with their timestamps, which are above all snapshots by then; what they replace is retired at
/// these. Nobody commits before [`Transactions::promote`].
///
/// # Several hosts
///
/// Hosts that run transactions over one memory have their slots there ([`Transactions::of_host`]), and clocks that show
/// one time. What the horizon says is of this host's snapshots, and is published; [`Transactions::horizon_of_all`] is the
/// least that any host has published. A transaction waits for one of another host for a bounded time, as nobody sees
/// who waits for whom across hosts: a cycle of waits that goes through two hosts has such a wait in it.
#[derive(Debug)]
pub struct Transactions {
    clock: Clock,
    slots: Slots,
    /// Slots from here on were never claimed. Published before a slot's first snapshot and state.
    slots_used: Line<AtomicUsize>,
    horizon: Line<AtomicU64>,
    candidate: Line<AtomicU64>,
    /// Held to move the horizon. Whoever holds it may also pin the horizon where it is.
    advancing: Mutex<()>,
    /// Slots below `slots_used` of nobody. The lowest first, so that few are looked at.
    free: Mutex<BinaryHeap<Reverse<usize>>>,
    pub(crate) waits: Waits,
    pub(crate) retired: SharedQueue,
}

impl Transactions {
    /// `last` is the highest timestamp that was ever used; zero for a new database.
    pub fn starting_after(last: CommitTs) -> Arc<Transactions> {
        Transactions::with_clock(Clock::starting_after(last))
    }

    /// Of who follows another process's log, all of which is applied up to `applied`.
    pub fn following(applied: CommitTs) -> Arc<Transactions> {
        Transactions::with_clock(Clock::following(applied))
    }

    /// One of the hosts that share `memory`. Its clock shows the same times as those of the others. Nobody else uses the
    /// host's slots, and those of a life before are as they were when new, but for higher sequence numbers.
    ///
    /// # Panics
    /// Where the memory has no such host.
    pub fn of_host(clock: Clock, memory: Arc<dyn SlotMemory>, host: usize) -> Arc<Transactions> {
        assert!(host < memory.hosts(), "the memory has {} hosts", memory.hosts());
        // Before a snapshot is drawn: others free what no host can see.
        memory.horizon(host).store(clock.now().0, Ordering::Release);
        fence(Ordering::SeqCst);
        Transactions::with_slots(clock, Slots::of(Member { memory, host }))
    }

    fn with_clock(clock: Clock) -> Arc<Transactions> {
        Transactions::with_slots(clock, Slots::new())
    }

    fn with_slots(clock: Clock, slots: Slots) -> Arc<Transactions> {
        let now = clock.now().0;
        Arc::new(Transactions {
            clock,
            slots,
            slots_used: Line(AtomicUsize::new(0)),
            horizon: Line(AtomicU64::new(now)),
            candidate: Line(AtomicU64::new(now)),
            advancing: Mutex::new(()),
            free: Mutex::new(BinaryHeap::new()),
            waits: Waits::new(),
            retired: SharedQueue::new(),
        })
    }

    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Whether it is another process that commits.
    #[inline]
    pub fn is_following(&self) -> bool {
        self.clock.is_following()
    }

    /// Everything with a timestamp up to `ts` is applied: snapshots from now on show it. Nothing that is applied later has
    /// such a timestamp. Never goes back; of no effect after [`Transactions::promote`].
    pub fn follow(&self, ts: CommitTs) {
        self.clock.follow(ts);
    }

    /// From now on this process commits, with timestamps above `after` and all that was applied. All that was applied is
    /// seen.
    pub fn promote(&self, after: CommitTs) {
        self.clock.run_after(after);
    }

    /// A slot, for a session or a thread to keep. 53300 when there are `SLOTS_MAX`, or as many as a host has of a memory that
    /// it shares.
    pub fn worker(self: &Arc<Self>) -> Result<Worker> {
        let own = self.slots.own();
        let index = own.start + {
            let mut free = lock(&self.free);
            match free.pop() {
                Some(Reverse(index)) => index,
                None => {
                    let next = self.slots_used.0.load(Ordering::Relaxed);
                    let slots = own.len();
                    if next == slots {
                        return Err(Error::new(SqlState::TOO_MANY_CONNECTIONS, "too many sessions and threads")
                            .with_detail(format!("{slots} of them can use transactions at a time.")));
                    }
                    self.slots.get(own.start + next);
                    self.slots_used.0.store(next + 1, Ordering::Release);
                    next
                }
            }
        };
        Ok(Worker::new(Arc::clone(self), index))
    }

    pub(crate) fn give_back(&self, index: usize) {
        lock(&self.free).push(Reverse(index - self.slots.own().start));
    }

    #[inline]
    pub(crate) fn slot(&self, index: usize) -> Slot<'_> {
        self.slots.get(index)
    }

    /// Whether the transaction of `tag` is under way.
    pub fn is_under_way(&self, tag: Tag) -> bool {
        self.slot(tag.slot()).is_current(tag)
    }

    pub(crate) fn hold(&self, index: usize, ts: u64) {
        self.slots.hold(index, ts);
    }

    pub(crate) fn let_go(&self, index: usize, ts: u64) {
        self.slots.let_go(index, ts);
    }

    /// Of this process, with their numbers among all.
    fn used_slots(&self) -> impl Iterator<Item = (usize, Slot<'_>)> {
        let first = self.slots.own().start;
        (first..first + self.slots_used.0.load(Ordering::Acquire)).map(|index| (index, self.slot(index)))
    }

    /// Whether a transaction is another host's.
    #[inline]
    pub fn is_foreign(&self, tag: Tag) -> bool {
        self.slots.member().is_some_and(|_| !self.slots.own().contains(&tag.slot()))
    }

    /// Returns when a slot's words outlive this host.
    pub(crate) fn make_durable(&self, index: usize) {
        if let Some(Member { memory, host }) = self.slots.member() {
            memory.make_durable(*host, index - self.slots.own().start);
        }
    }

    /// What the transaction of a tag that was found in a version is doing.
    #[inline]
    pub fn status(&self, tag: Tag) -> Status {
        self.slot(tag.slot()).status(tag)
    }

    /// Whether a snapshot at `ts` includes what `begin` dates. `None`: the word was a tag of a transaction that is over, and
    /// is to be read again. A transaction that is about to commit will do so after `ts` from now on.
    #[inline]
    pub(crate) fn is_before(&self, begin: u64, ts: u64) -> Option<bool> {
        if begin & TAG_BIT == 0 {
            return Some(begin <= ts);
        }
        self.tag_is_before(Tag(begin), ts)
    }

    /// Whether a snapshot at `ts` includes what a word dates that was copied from a version's `begin`. `None`: the
    /// transaction that it names is over, and the version has its timestamp by now.
    #[inline]
    pub fn word_is_before(&self, begin: u64, ts: CommitTs) -> Option<bool> {
        self.is_before(begin, ts.0)
    }

    fn tag_is_before(&self, tag: Tag, ts: u64) -> Option<bool> {
        let slot = self.slot(tag.slot());
        loop {
            match slot.status(tag) {
                // It will draw a time after `ts`, which was drawn before this look, with full fences on both sides.
                Status::Running | Status::Aborted => return Some(false),
                Status::Committing(m) if m >= ts => return Some(false),
                Status::Committing(m) => {
                    if slot.raise(m, ts) {
                        return Some(false);
                    }
                }
                Status::Committed(c) => return Some(c <= ts),
                Status::Gone => return None,
            }
        }
    }

    /// No snapshot below this is in use. As of the last advance.
    #[inline]
    pub fn horizon(&self) -> CommitTs {
        CommitTs(self.horizon.0.load(Ordering::Acquire))
    }

    #[inline]
    pub(crate) fn candidate(&self) -> u64 {
        self.candidate.0.load(Ordering::Relaxed)
    }

    /// Moves the horizon up to the oldest snapshot in use, or to now. Looks at every slot.
    pub fn advance_horizon(&self) -> CommitTs {
        let _advancing = lock(&self.advancing);
        self.advance()
    }

    /// As `advance_horizon`, unless somebody else is doing so.
    pub fn try_advance_horizon(&self) -> CommitTs {
        match self.advancing.try_lock() {
            Ok(_advancing) => self.advance(),
            Err(_) => self.horizon(),
        }
    }

    fn advance(&self) -> CommitTs {
        let candidate = self.clock.now().0;
        self.candidate.0.store(candidate, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let oldest = self.used_slots().map(|(_, slot)| slot.oldest()).min().unwrap_or(NONE);
        let horizon = oldest.min(candidate);
        // Snapshots only go up, but for one that is pinned at the horizon itself.
        if horizon > self.horizon.0.load(Ordering::Relaxed) {
            // Release: whoever frees by it comes after the reads that were waited for.
            self.horizon.0.store(horizon, Ordering::Release);
            if let Some(Member { memory, host }) = self.slots.member() {
                memory.horizon(*host).store(horizon, Ordering::Release);
            }
        }
        self.horizon()
    }

    /// No snapshot of any host below this is in use, nor will be. Where no memory is shared, this process's horizon.
    pub fn horizon_of_all(&self) -> CommitTs {
        match self.slots.member() {
            None => self.horizon(),
            Some(Member { memory, .. }) => {
                // Acquire: what was read under snapshots that are gone was read before.
                let horizons = (0..memory.hosts()).map(|host| memory.horizon(host).load(Ordering::Acquire));
                CommitTs(horizons.min().unwrap_or(NONE))
            }
        }
    }

    /// The horizon, and whatever `publish` does with it before it can move.
    pub(crate) fn at_horizon(&self, publish: impl FnOnce(u64)) -> u64 {
        let _advancing = lock(&self.advancing);
        let horizon = self.horizon.0.load(Ordering::Relaxed);
        publish(horizon);
        horizon
    }

    /// Every commit with a timestamp below this one has been appended to the log: what the log may call durable once it
    /// has written all that was appended. Looks at every slot.
    pub fn floor(&self) -> CommitTs {
        // Before the look at the slots: whoever is found not to have begun to commit will draw a later time.
        let now = self.clock.now().0;
        fence(Ordering::SeqCst);
        let of_slot = |(_, slot): (usize, Slot<'_>)| {
            let state = slot.state().load(Ordering::Acquire);
            match state & crate::slots::ABORTED {
                crate::slots::RUNNING | crate::slots::ABORTED => now,
                // `committing (m)`: the timestamp will be greater. `committed (c)`: it is `c`, perhaps not appended yet.
                _ => ts_of(state),
            }
        };
        CommitTs(self.used_slots().map(of_slot).min().unwrap_or(now).min(now))
    }

    /// The snapshots in use of each slot that has any: slot and timestamp. What holds the horizon back.
    pub fn snapshots(&self) -> Vec<(usize, CommitTs)> {
        self.used_slots()
            .map(|(index, slot)| (index, slot.oldest()))
            .filter(|(_, oldest)| *oldest != NONE)
            .map(|(index, oldest)| (index, CommitTs(oldest)))
            .collect()
    }

    /// Workers that there are.
    pub fn workers(&self) -> usize {
        self.slots_used.0.load(Ordering::Relaxed) - lock(&self.free).len()
    }
}
