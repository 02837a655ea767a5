//! Workers: one transaction at a time, from its begin to its end.
//!
//! # Committing
//!
//! 1. The state becomes committing (*m*), *m* being the time; then a full fence.
//! 2. Room in the log is reserved.
//! 3. When the clock is not before *m* any more, *c* is the next nanosecond. A serializable transaction is validated as
//!    of *c*. Then the state becomes committed (*c*) by compare-and-swap; if somebody raised *m* meanwhile, step 3 is
//!    repeated.
//! 4. The redo record is appended, the versions are stamped, and the slot's sequence number moves on.
//!
//! Let a reader have drawn *s*, and meet a version of the transaction. Between drawing and meeting there is a full
//! fence.
//!
//! * It finds the transaction running: then its fence is before that of step 1, and *c* > *s*, as the clock is read
//!   after the latter and *c* is after what is read. It does not see the version, and never will.
//! * It finds it committing (*m*) and raises *m* to *s*, or finds *m* >= *s*: the compare-and-swap of step 3 succeeds
//!   only for a *c* > *m*.
//! * It finds it committed: *c* tells.
//!
//! Between steps 3 and 4 others see what was written as committed: they may replace it, commit, and retire it. So a snapshot
//! from before step 1 is in use until the versions are stamped; the horizon does not pass what replaced them.
//!
//! Where hosts share slots, a transaction that others may find has its state outlive the host before its versions say so.
//!
//! So all of a transaction's versions are in a snapshot or none is. A commit returns when the clock has reached *c*, so
//! whatever begins after that sees it.

use crate::retire::{Due, Queue, Reclaim};
use crate::slots::{ABORTED, NONE, RUNNING, Slot, committed, committing, ts_of};
use crate::sync::{Ordering, fence};
use crate::tag::{SEQUENCE_MASK, Tag};
use crate::{HeldSnapshot, Snapshot, Transactions, Validation, View};
use std::cell::{Cell, OnceCell, RefCell};
use std::sync::Arc;
use tidepool_base::{CommitTs, Error, Result, SqlState};

/// Items that a worker retires from one look at whether some of them can go to the next.
const COLLECT_EVERY: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// A snapshot for each statement.
    ReadCommitted,
    /// One snapshot.
    RepeatableRead,
    /// One snapshot, and what was read is the same at commit.
    Serializable,
}

/// What a transaction does to commit, in this order. Of the first two, an error leaves it running.
pub trait Commit {
    /// Makes sure that `append` will not fail.
    fn reserve(&mut self) -> Result<()>;

    /// Serializable transactions: that their reads hold still. May be called several times, each for a later timestamp.
    fn validate(&mut self, check: &Validation<'_>) -> Result<()> {
        let _ = check;
        Ok(())
    }

    /// Other hosts find what it wrote: the commit is to outlive this one before anything rests on it.
    fn is_shared(&self) -> bool {
        false
    }

    /// Appends the redo record.
    fn append(&mut self, ts: CommitTs);

    /// Puts `ts` into every version in place of the tag, and retires what they replaced at `ts`.
    fn stamp(&mut self, ts: CommitTs, worker: &Worker);

    /// In the place of all the others, when nothing was written: forgets what was read.
    fn end_reading(&mut self) {}

    /// Nobody reads what was written but the worker's own session, one statement after the other. It is committed where another
    /// process commits, too.
    fn is_apart(&self) -> bool {
        false
    }
}

/// A slot, of a session or a thread that keeps it for long: one transaction after another. Dropping it gives the slot
/// back; a transaction that is still open must have been ended by then: if it wrote anything, nobody will see it, but
/// whoever wants to write there waits in vain.
#[derive(Debug)]
pub struct Worker {
    transactions: Arc<Transactions>,
    index: usize,
    sequence: u64,
    isolation: Isolation,
    is_active: bool,
    /// Its tag may be in a version.
    wrote: Cell<bool>,
    command: Cell<u32>,
    /// Snapshots lent, and the transaction's own. The slot publishes the first of them until the last is gone.
    open: Cell<u32>,
    /// The transaction's own snapshot, zero until it is drawn.
    transaction_ts: Cell<u64>,
    /// What `view` lends, of the transaction's own snapshot.
    own_view: OnceCell<View>,
    /// The next commit comes after this.
    lower: Cell<u64>,
    queue: RefCell<Queue>,
    /// Items in the queue at which to look whether some can go.
    collect_at: Cell<usize>,
    /// It must not sleep for others: on a thread that others need.
    is_hurried: Cell<bool>,
    /// It was to sleep, and did not.
    was_held_up: Cell<bool>,
    /// For this transaction.
    held_up_by: Cell<Option<Tag>>,
}

impl Worker {
    pub(crate) fn new(transactions: Arc<Transactions>, index: usize) -> Worker {
        let sequence = transactions.slot(index).sequence();
        // At or after every timestamp that the slot had: its commits waited for theirs.
        let lower = transactions.clock().now().0;
        Worker {
            transactions,
            index,
            sequence,
            isolation: Isolation::ReadCommitted,
            is_active: false,
            wrote: Cell::new(false),
            command: Cell::new(1),
            open: Cell::new(0),
            transaction_ts: Cell::new(0),
            own_view: OnceCell::new(),
            lower: Cell::new(lower),
            queue: RefCell::default(),
            collect_at: Cell::new(COLLECT_EVERY),
            is_hurried: Cell::new(false),
            was_held_up: Cell::new(false),
            held_up_by: Cell::new(None),
        }
    }

    #[inline]
    pub fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    #[inline]
    fn slot(&self) -> Slot<'_> {
        self.transactions.slot(self.index)
    }

    /// Small, and no other worker's at the same time: for choosing among things that threads should not share.
    #[inline]
    pub fn index(&self) -> usize {
        self.index
    }

    pub fn is_active(&self) -> bool {
        self.is_active
    }

    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// 25001 inside a transaction. Shares nothing with other threads; the snapshot is drawn when it is first used.
    #[inline]
    pub fn begin(&mut self, isolation: Isolation) -> Result<()> {
        if self.is_active {
            return Err(Error::new(SqlState::ACTIVE_SQL_TRANSACTION, "there is already a transaction in progress"));
        }
        self.is_active = true;
        self.isolation = isolation;
        Ok(())
    }

    /// What versions of the present transaction bear. Whoever writes it anywhere says so by `tag_to_write`.
    #[inline]
    pub fn tag(&self) -> Tag {
        Tag::new(self.index, self.sequence)
    }

    /// As `tag`, for writing it into a version.
    #[inline]
    pub fn tag_to_write(&self) -> Tag {
        debug_assert!(self.is_active);
        self.wrote.set(true);
        self.tag()
    }

    /// True once its tag may be in a version.
    pub fn wrote(&self) -> bool {
        self.wrote.get()
    }

    /// What is written from now on belongs to the next command, which sees what earlier ones wrote. 54000 after four
    /// billion in one transaction.
    pub fn next_command(&self) -> Result<()> {
        let next = self.command.get().checked_add(1).ok_or_else(|| {
            Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "cannot have more than 4294967295 commands in a transaction")
        })?;
        self.command.set(next);
        Ok(())
    }

    /// Sees to it that the transaction commits after `ts`, the timestamp of what it replaces.
    #[inline]
    pub fn commit_after(&self, ts: CommitTs) {
        self.lower.set(self.lower.get().max(ts.0));
    }

    /// The view of the next statement: a new one each time for `READ COMMITTED`, and outside of a transaction; the
    /// transaction's otherwise.
    #[inline]
    pub fn snapshot(&self) -> Snapshot<'_> {
        let ts = if self.is_active && self.isolation != Isolation::ReadCommitted {
            if self.transaction_ts.get() == 0 {
                self.transaction_ts.set(self.draw());
            }
            self.transaction_ts.get()
        } else {
            return self.snapshot_now();
        };
        self.open.set(self.open.get() + 1);
        Snapshot { view: View::new(&self.transactions, ts, self.tag(), self.command.get()), worker: self }
    }

    /// The view of the transaction's one snapshot, which sees what the transaction writes, too: for who reads and writes row by
    /// row and not in statements. What is reached under it is lent until the transaction ends. Of the levels that have one
    /// snapshot.
    ///
    /// # Panics
    /// Outside of a transaction, and in one of `READ COMMITTED`.
    #[inline]
    pub fn view(&self) -> &View {
        self.own_view.get_or_init(|| {
            assert!(self.is_active && self.isolation != Isolation::ReadCommitted, "a transaction of one snapshot");
            if self.transaction_ts.get() == 0 {
                self.transaction_ts.set(self.draw());
            }
            View::seeing_own(&self.transactions, self.transaction_ts.get(), self.tag(), self.command.get())
        })
    }

    /// A view of all that is committed by now, whatever the isolation level: for looking at a row's newest version.
    #[inline]
    pub fn snapshot_now(&self) -> Snapshot<'_> {
        let ts = self.draw();
        Snapshot { view: View::new(&self.transactions, ts, self.tag(), self.command.get()), worker: self }
    }

    /// A snapshot that counts as open.
    #[inline]
    fn draw(&self) -> u64 {
        let clock = self.transactions.clock();
        let open = self.open.get();
        self.open.set(open + 1);
        if open > 0 {
            // What is published is older and holds the horizon back for this one too.
            let ts = clock.now().0;
            // Between drawing and looking: see the argument above.
            fence(Ordering::SeqCst);
            return ts;
        }
        let slot = self.slot();
        loop {
            let ts = clock.now().0;
            // Release: whoever finds this one instead of the end of the one before it comes after what was read under that.
            slot.snapshot().store(ts, Ordering::Release);
            // Between drawing and looking, and between publishing and looking at the candidate.
            fence(Ordering::SeqCst);
            if ts >= self.transactions.candidate() {
                return ts;
            }
        }
    }

    #[inline]
    pub(crate) fn close_snapshot(&self) {
        let open = self.open.get() - 1;
        self.open.set(open);
        if open == 0 {
            // Release: what was read was read before.
            self.slot().snapshot().store(NONE, Ordering::Release);
        }
    }

    /// As `snapshot`, to be used apart from the worker.
    pub fn hold(&self) -> HeldSnapshot {
        self.held(&self.snapshot())
    }

    /// Lets go of the transaction's own snapshot: the next view draws another. For whoever has not looked at anything
    /// under it.
    ///
    /// # Panics
    /// After `view` lent it.
    pub fn forget_snapshot(&self) {
        assert!(self.own_view.get().is_none(), "a snapshot that is lent to the transaction's end is not forgotten");
        if self.transaction_ts.replace(0) != 0 {
            self.close_snapshot();
        }
    }

    /// As `snapshot_now`, to be used apart from the worker.
    pub fn hold_now(&self) -> HeldSnapshot {
        self.held(&self.snapshot_now())
    }

    fn held(&self, snapshot: &View) -> HeldSnapshot {
        self.transactions.hold(self.index, snapshot.ts().0);
        HeldSnapshot {
            view: View::new(&self.transactions, snapshot.ts().0, self.tag(), self.command.get()),
            transactions: Arc::clone(&self.transactions),
            slot: self.index,
        }
    }

    /// A view of the oldest that anybody can see, which keeps the horizon where it is: for looking at all versions that
    /// are of use to somebody. Short, as nothing is freed meanwhile.
    pub fn pin_horizon(&self) -> HeldSnapshot {
        let horizon = self.transactions.at_horizon(|horizon| self.transactions.hold(self.index, horizon));
        fence(Ordering::SeqCst);
        HeldSnapshot {
            // It sees no writes of its own transaction, whose commands count from one.
            view: View::new(&self.transactions, horizon, self.tag(), 0),
            transactions: Arc::clone(&self.transactions),
            slot: self.index,
        }
    }

    /// As `pin_horizon`, of all that is committed by now: for what nobody looks at through an older view.
    pub fn pin_now(&self) -> HeldSnapshot {
        let snapshot = self.snapshot_now();
        let ts = snapshot.ts().0;
        self.transactions.hold(self.index, ts);
        HeldSnapshot {
            view: View::new(&self.transactions, ts, self.tag(), 0),
            transactions: Arc::clone(&self.transactions),
            slot: self.index,
        }
    }

    /// Waits until another transaction is over. See [`Transactions::wait_for`]. Of a worker in a hurry an error at once
    /// ([`Worker::set_hurried`]).
    pub fn wait_for(&self, target: Tag, interrupted: &dyn Fn() -> Result<()>) -> Result<()> {
        if self.is_hurried.get() {
            self.held_up_by.set(Some(target));
            return Err(self.held_up());
        }
        self.transactions.wait_for(self.tag(), target, interrupted)
    }

    /// Whether it may not sleep until others are over. What would take that is an error then, whatever it says, and
    /// [`Worker::was_held_up`]: what was begun is to be undone, and done again where it may sleep.
    pub fn set_hurried(&self, hurried: bool) {
        self.is_hurried.set(hurried);
        self.was_held_up.set(false);
        self.held_up_by.set(None);
    }

    pub fn is_hurried(&self) -> bool {
        self.is_hurried.get()
    }

    /// It was to sleep since [`Worker::set_hurried`].
    pub fn was_held_up(&self) -> bool {
        self.was_held_up.get()
    }

    /// Has `call` told when the transaction that it was held up by is over ([`Transactions::when_over`]). False: that is not
    /// known.
    pub fn when_free(&self, call: impl FnOnce() + Send + 'static) -> Result<bool> {
        match self.held_up_by.get() {
            Some(target) => self.transactions.when_over(self.tag(), target, call).map(|()| true),
            None => Ok(false),
        }
    }

    /// `when_free` is not told any more.
    pub fn stop_waiting(&self) {
        self.transactions.stop_waiting(self.tag());
    }

    /// What it is told that was to sleep, and may not.
    #[cold]
    pub fn held_up(&self) -> Error {
        self.was_held_up.set(true);
        Error::new(SqlState::LOCK_NOT_AVAILABLE, "another transaction is to be waited for")
    }

    /// Commits. On an error (of `reserve`: no room in the log; of `validate`: 40001; 25006 where another process commits) the transaction is running as
    /// before, and is to be aborted. A transaction that wrote nothing has no timestamp of its own: everything in it was
    /// as of its snapshot.
    pub fn commit(&mut self, work: &mut impl Commit) -> Result<Option<CommitTs>> {
        debug_assert!(self.is_active);
        if !self.wrote.get() {
            work.end_reading();
            self.end();
            return Ok(None);
        }
        if self.transactions.is_following() {
            if work.is_apart() {
                return Ok(Some(self.commit_apart(work)));
            }
            return Err(Error::new(SqlState::READ_ONLY_SQL_TRANSACTION, "cannot write during recovery"));
        }
        // Until the versions are stamped.
        self.draw();
        let clock = self.transactions.clock();
        let slot = self.slot();
        let m = clock.now().0.max(self.lower.get() + 1);
        slot.state().store(committing(m), Ordering::Release);
        fence(Ordering::SeqCst);
        let decided = work.reserve().and_then(|()| self.decide(slot, work));
        let c = match decided {
            Ok(c) => c,
            Err(error) => {
                // Whoever raised the bound relies on it even if this is tried again.
                let before = slot.state().swap(RUNNING, Ordering::AcqRel);
                self.lower.set(self.lower.get().max(ts_of(before)));
                self.close_snapshot();
                return Err(error);
            }
        };
        let is_shared = work.is_shared();
        if is_shared {
            // Before a version says so, and before the client hears it.
            self.transactions.make_durable(self.index);
        }
        work.append(CommitTs(c));
        work.stamp(CommitTs(c), self);
        self.close_snapshot();
        self.lower.set(c);
        self.end_writing();
        if is_shared {
            // Before any host sees the next transaction's tag: else this host's death could leave one's state beside the
            // other's sequence number.
            self.transactions.make_durable(self.index);
        }
        self.transactions.clock().wait_until(c);
        self.collect_some();
        Ok(Some(CommitTs(c)))
    }

    /// Commits what nobody else reads, as of a time that is another process's: the session's next snapshot is no earlier. What it
    /// replaces is retired at that time, so it stays as long as there is a snapshot of then.
    fn commit_apart(&mut self, work: &mut impl Commit) -> CommitTs {
        // Until the versions are stamped.
        self.draw();
        let c = self.transactions.clock().now().0;
        self.slot().state().store(committed(c), Ordering::Release);
        work.stamp(CommitTs(c), self);
        self.close_snapshot();
        self.lower.set(self.lower.get().max(c));
        self.end_writing();
        self.collect_some();
        CommitTs(c)
    }

    /// Step 3.
    fn decide(&self, slot: Slot<'_>, work: &mut impl Commit) -> Result<u64> {
        let mut round = 0;
        let view = View::new(&self.transactions, self.transaction_ts.get(), self.tag(), self.command.get());
        loop {
            let seen = slot.state().load(Ordering::Acquire);
            // Not ahead of the clock by more than this nanosecond: whoever is found running now will draw no earlier
            // one.
            let c = self.transactions.clock().wait_until(ts_of(seen)) + 1;
            if self.isolation == Isolation::Serializable && self.transaction_ts.get() != 0 {
                // Between drawing and looking, as a reader.
                fence(Ordering::SeqCst);
                let check = Validation {
                    transactions: &self.transactions,
                    own: self.tag(),
                    snapshot: self.transaction_ts.get(),
                    commit: c,
                    round,
                    view: &view,
                };
                work.validate(&check)?;
            }
            if slot.state().compare_exchange(seen, committed(c), Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                return Ok(c);
            }
            round += 1;
        }
    }

    /// Aborts: `undo` takes all its versions out of reach, dating them [`crate::NEVER`], and retires them as of now.
    pub fn abort(&mut self, undo: impl FnOnce(&Worker)) {
        if !self.is_active {
            return;
        }
        if !self.wrote.get() {
            undo(self);
            self.end();
            return;
        }
        // Readers need not ask for a timestamp that will not come.
        self.slot().state().store(ABORTED, Ordering::Release);
        {
            // What it goes through to its versions stays where it is.
            let _pin = self.snapshot_now();
            undo(self);
        }
        self.end_writing();
        self.collect_some();
    }

    fn end_writing(&mut self) {
        self.sequence = (self.sequence + 1) & SEQUENCE_MASK;
        if self.slot().end_sequence(self.sequence) {
            self.transactions.waits.wake(self.index);
        }
        self.wrote.set(false);
        self.command.set(1);
        self.end();
    }

    fn end(&mut self) {
        self.is_active = false;
        self.own_view.take();
        if self.transaction_ts.replace(0) != 0 {
            self.close_snapshot();
        }
        // While the sequence number stays, commands go on: a held snapshot must not see the next transaction's as its
        // own.
        self.command.set(self.command.get().saturating_add(1));
    }

    /// Hands `words` to `owner` when nobody can have a snapshot at or before `ts` any more.
    #[inline]
    pub fn retire(&self, ts: CommitTs, owner: &Arc<dyn Reclaim>, words: [u64; 2]) {
        self.queue.borrow_mut().push(ts, owner, words);
    }

    /// As `retire`, of something rare.
    pub fn retire_with(&self, ts: CommitTs, call: impl FnOnce() + Send + 'static) {
        self.queue.borrow_mut().push_call(ts, Box::new(call));
    }

    /// The time as of which something that was just taken out of reach is to be retired.
    pub fn retirement_ts(&self) -> CommitTs {
        // After it is out of reach for all, as a snapshot is drawn before what it reaches is looked at.
        fence(Ordering::SeqCst);
        self.transactions.clock().now()
    }

    /// Frees of what this worker retired, if it is much.
    #[inline]
    fn collect_some(&self) {
        if self.queue.borrow().len() >= self.collect_at.get() {
            self.transactions.try_advance_horizon();
            self.free_due();
            self.queue.borrow_mut().forget_owners();
            self.collect_at.set(self.queue.borrow().len() + COLLECT_EVERY);
        }
    }

    /// Frees everything that can be freed, of this worker's and of what others handed over. Returns how many items are
    /// left. For a background thread, and for whoever needs memory.
    pub fn collect(&self) -> usize {
        let horizon = self.transactions.advance_horizon();
        self.transactions.retired.hand_out(horizon, &mut self.queue.borrow_mut());
        self.free_due();
        let mut queue = self.queue.borrow_mut();
        queue.forget_owners();
        queue.len() + self.transactions.retired.len()
    }

    fn free_due(&self) {
        let horizon = self.transactions.horizon();
        loop {
            // Not borrowed while an owner is at work: it may retire more.
            let due = self.queue.borrow_mut().pop(horizon);
            match due {
                None => break,
                Some(Due::Call(call)) => call(),
                Some(Due::Batch(owner, batch)) => {
                    owner.reclaim(&batch, self);
                    self.queue.borrow_mut().keep_batch(batch);
                }
            }
        }
    }

    /// To be called when nothing is to be done for a while: others may free what this worker retired.
    pub fn rest(&self) {
        self.transactions.retired.take_over(self.queue.take());
    }
}

const _: () = {
    const fn moves_between_threads<T: Send>() {}
    moves_between_threads::<Worker>();
};

impl Drop for Worker {
    fn drop(&mut self) {
        // The last one leaves nothing behind that would keep its owners, and with them the transactions, for ever.
        // Where time stands still, whoever ends the transactions lets it run first.
        let is_last = self.transactions.workers() == 1 && !self.transactions.is_following();
        if is_last && !self.is_active && !std::thread::panicking() {
            while self.collect() > 0 && self.transactions.snapshots().is_empty() {}
        }
        self.rest();
        if self.is_active && self.wrote.get() {
            // Its versions are still there. Nobody shall see them, so nobody may have the slot.
            self.slot().state().store(ABORTED, Ordering::Release);
            return;
        }
        self.abort(|_| ());
        self.transactions.give_back(self.index);
    }
}
