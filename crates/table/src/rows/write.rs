//! Writing rows: the first who puts a version into a row's head has the row until the transaction ends.

use super::range::{MainPart, Range};
use super::reclaim::PLAIN;
use super::sync::spin;
use super::version::{Found, Keys, Kind, Version};
use super::{RowLock, RowStore, WriteSet};
use crate::RowGroup;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{CommitTs, Error, Result, RowId, SqlState};
use tidepool_txn::{NEVER, Status, Tag, View, Worker};

/// What came of writing or locking a row. Exhaustive and mutually exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Written, or locked.
    Written,
    /// Another transaction has the row: wait for its end (`Worker::wait_for`), then look again.
    Conflict(Tag),
    /// The row was changed after the view, and is there no more if `deleted`: look at it as of now, or give up (40001).
    Newer { ts: CommitTs, deleted: bool },
    /// The row is not there, as the view sees it.
    Deleted,
    /// The same command wrote it already.
    SelfModified,
}

enum Target {
    /// The head, as it was found, may be replaced.
    Free(Option<Version>),
    Refused(Outcome),
    /// The row is in this tuple of the pod.
    Pod(u32),
}

impl RowStore {
    /// Adds a row. 53200 when the tablespace of delta or near is full.
    pub fn insert(
        self: &Arc<Self>,
        worker: &Worker,
        view: &View,
        writes: &mut WriteSet,
        image: &[u8],
    ) -> Result<RowId> {
        self.check_view(view);
        let row = self.take_id(worker.index());
        let range = self.range_of(row)?;
        range.head_to_write(view, row.position())?;
        let version = self.new_version(worker, view, (Kind::Row, Keys::Change), None, image)?;
        // Its page may be on its way out, as nothing is in it yet. Nobody else puts anything there.
        let placed = loop {
            match range.head_to_write(view, row.position()) {
                Ok(head) if head.replace(None, version) => break Ok(()),
                Ok(_) => spin(),
                Err(full) => break Err(full),
            }
        };
        if let Err(full) = placed {
            // SAFETY: nobody has seen it.
            unsafe { version.free(&self.memory) };
            return Err(full);
        }
        range.mark(row.position());
        writes.wrote(self, row, version, None);
        Ok(row)
    }

    /// As `insert`, of a row that a log or another copy of the table has under this id. Of a row that exists the newest
    /// version is replaced. Nobody else may be writing.
    pub fn put(
        self: &Arc<Self>,
        worker: &Worker,
        view: &View,
        writes: &mut WriteSet,
        row: RowId,
        image: Option<&[u8]>,
    ) -> Result<()> {
        self.check_view(view);
        while self.directory.len() <= row.range() {
            self.add_range(Range::new(self.heads()));
        }
        let range = self.range_of(row)?;
        let head = range.head_to_write(view, row.position())?;
        let before = match head.load() {
            Found::Version(version) => Some(version),
            Found::Null | Found::TakingOut => None,
            Found::Pod(_) => return Err(Error::internal("a row is put down that is in the pod")),
        };
        let kind = if image.is_some() { Kind::Row } else { Kind::Deleted };
        let version = self.new_version(worker, view, (kind, Keys::Change), before, image.unwrap_or(&[]))?;
        if !head.replace(before, version) {
            return Err(Error::internal("a row is written while the table is restored"));
        }
        range.mark(row.position());
        writes.wrote(self, row, version, before);
        Ok(())
    }

    /// Replaces a row's image. `keys`: where the columns that others may refer to stay as they are, a `FOR KEY SHARE` lock is not in
    /// the way; where those of all indexes do, nobody need look after entries of what was replaced. 53200 as `insert`.
    pub fn update(
        self: &Arc<Self>,
        worker: &Worker,
        view: &View,
        writes: &mut WriteSet,
        row: RowId,
        image: &[u8],
        keys: Keys,
    ) -> Result<Outcome> {
        self.write(worker, view, writes, row, (Kind::Row, keys), image)
    }

    /// Takes a row away. 53200 as `insert`: that a row is gone takes a version, too.
    pub fn delete(
        self: &Arc<Self>,
        worker: &Worker,
        view: &View,
        writes: &mut WriteSet,
        row: RowId,
    ) -> Result<Outcome> {
        self.write(worker, view, writes, row, (Kind::Deleted, Keys::Change), &[])
    }

    /// Locks a row to the transaction's end. A lock that the transaction has, or a row that it wrote, is enough if it is no
    /// weaker. 53200 as `insert`, for the exclusive ones.
    pub fn lock_row(
        self: &Arc<Self>,
        worker: &Worker,
        view: &View,
        writes: &mut WriteSet,
        row: RowId,
        lock: RowLock,
    ) -> Result<Outcome> {
        self.check_view(view);
        if lock.is_shared() {
            let Some(range) = self.directory.get(row.range()) else { return Ok(Outcome::Deleted) };
            // Seen by writers as long as its tag is that of a transaction under way.
            let own = worker.tag_to_write();
            let mut in_pod = None;
            let look = || match self.target(view, range, row.position(), Some(lock)) {
                Target::Free(_) => Ok(()),
                Target::Refused(outcome) => Err(outcome),
                Target::Pod(tuple) => {
                    in_pod = Some(tuple);
                    Err(Outcome::Deleted)
                }
            };
            let shared = self.locks.share(row, own, lock, look);
            if let Some(tuple) = in_pod {
                // Shared locks are in near memory, where other hosts do not look: there all locks are exclusive.
                return match self.write_in_pod(worker, view, writes, row, (tuple, None), None)? {
                    Some(outcome) => Ok(outcome),
                    None => self.lock_row(worker, view, writes, row, lock),
                };
            }
            return Ok(match shared {
                Ok(new) => {
                    if new {
                        writes.locked(self, row);
                    }
                    Outcome::Written
                }
                // What it wrote itself is locked better than that.
                Err(Outcome::SelfModified) => Outcome::Written,
                Err(outcome) => outcome,
            });
        }
        let keys = if lock == RowLock::NoKeyUpdate { Keys::LeaveUnique } else { Keys::Change };
        Ok(match self.write(worker, view, writes, row, (Kind::Lock, keys), &[])? {
            Outcome::SelfModified => Outcome::Written,
            outcome => outcome,
        })
    }

    fn range_of(&self, row: RowId) -> Result<&Range> {
        self.directory.get(row.range()).ok_or_else(|| Error::internal(format!("there is no row {row}")))
    }

    fn new_version(
        &self,
        worker: &Worker,
        view: &View,
        (kind, keys): (Kind, Keys),
        older: Option<Version>,
        image: &[u8],
    ) -> Result<Version> {
        if image.len() >= super::IMAGE_BYTES_MAX {
            return Err(Error::new(SqlState::PROGRAM_LIMIT_EXCEEDED, "row is too long"));
        }
        let (shard, tag) = (worker.index(), worker.tag_to_write());
        Version::write(&self.memory, shard, tag.word(), view.writes_as(), (kind, keys), older, image)
    }

    fn write(
        self: &Arc<Self>,
        worker: &Worker,
        view: &View,
        writes: &mut WriteSet,
        row: RowId,
        (kind, keys): (Kind, Keys),
        image: &[u8],
    ) -> Result<Outcome> {
        self.check_view(view);
        let Some(range) = self.directory.get(row.range()) else { return Ok(Outcome::Deleted) };
        let leaves_key = keys != Keys::Change;
        loop {
            let before = match self.target(view, range, row.position(), None) {
                Target::Free(before) => before,
                Target::Refused(outcome) => return Ok(outcome),
                Target::Pod(tuple) => match self.write_to_pod(worker, view, writes, row, tuple, (kind, keys), image)? {
                    Some(outcome) => return Ok(outcome),
                    None => continue,
                },
            };
            // SAFETY: found in the head under the view.
            let own = before
                .map(|version| unsafe { version.header() })
                .filter(|header| header.begin.load(Ordering::Relaxed) == worker.tag().word());
            let own_lock = own.filter(|header| header.kind() == Kind::Lock);
            if kind == Kind::Lock && own.is_some_and(|own| own.kind() != Kind::Lock || !own.leaves_key() || leaves_key)
            {
                // Nobody has the row but this transaction.
                return Ok(Outcome::Written);
            }
            // Locks are passed over, and are gone after the commit.
            let older = own_lock.map_or(before, |lock| lock.older());
            let head = range.head_to_write(view, row.position())?;
            let version = self.new_version(worker, view, (kind, keys), older, image)?;
            if !head.replace(before, version) {
                // SAFETY: nobody has seen it.
                unsafe { version.free(&self.memory) };
                continue;
            }
            range.mark(row.position());
            if let Some(tag) = self.locks.in_the_way(&self.transactions, row, worker.tag(), leaves_key) {
                head.restore(before);
                // SAFETY: this function's own; it is not retired yet.
                unsafe { version.header() }.begin.store(NEVER.0, Ordering::Release);
                let owner = writes.owner(self);
                self.retire(worker, owner, worker.retirement_ts(), [version.marked(PLAIN), row.0]);
                return Ok(Outcome::Conflict(tag));
            }
            match kind {
                Kind::Lock => writes.locked_alone(self, row, version, before),
                Kind::Row | Kind::Deleted => writes.wrote(self, row, version, before),
            }
            return Ok(Outcome::Written);
        }
    }

    /// Writes a row that was found in the pod. `None`: it has gone home, or was brought there.
    #[cold]
    #[expect(clippy::too_many_arguments, reason = "what a write has at hand")]
    fn write_to_pod(
        self: &Arc<Self>,
        worker: &Worker,
        view: &View,
        writes: &mut WriteSet,
        row: RowId,
        tuple: u32,
        (kind, keys): (Kind, Keys),
        image: &[u8],
    ) -> Result<Option<Outcome>> {
        let Some(member) = self.pod.get() else { return Err(Error::internal("a row is in no pod and in one")) };
        let keeps_keys = kind == Kind::Lock || kind == Kind::Row && keys == Keys::Leave;
        if keeps_keys && !member.is_wanted_home(tuple) {
            let image = (kind == Kind::Row).then_some(image);
            return self.write_in_pod(worker, view, writes, row, (tuple, None), image);
        }
        if self.move_out(worker, row)? {
            return Ok(None);
        }
        // Who has the row is waited for. Where a snapshot may still see what it was, or this transaction has written it, the
        // next try finds it at home.
        member.want_home(tuple, true);
        Ok(match self.write_in_pod(worker, view, writes, row, (tuple, None), None)? {
            Some(Outcome::Written) => Some(Outcome::Newer { ts: view.ts(), deleted: false }),
            outcome => outcome,
        })
    }

    /// Whether the view's transaction may write the row. With `shared`: whether it may have that lock on it.
    fn target(&self, view: &View, range: &Range, position: usize, shared: Option<RowLock>) -> Target {
        let mut tries = 0u32;
        loop {
            let found = range.head(view, position).map_or(Found::Null, |head| head.load());
            let mut version = match found {
                Found::Null => return self.target_in_main(view, range, position, None),
                Found::TakingOut => {
                    // Some instructions long, but its thread may have lost its processor.
                    pause(&mut tries);
                    continue;
                }
                Found::Pod(tuple) => return Target::Pod(tuple),
                Found::Version(version) => version,
            };
            let first = version;
            // Beneath locks that are not in the way.
            let target = loop {
                // SAFETY: in the head under the view, or beneath a lock that is there.
                let header = unsafe { version.header() };
                self.memory.charge_read(size_of_val(header));
                match self.standing(view, header, shared) {
                    Standing::Through => match header.older() {
                        Some(older) => version = older,
                        None => break Some(self.target_in_main(view, range, position, Some(first))),
                    },
                    Standing::Free => break Some(Target::Free(Some(first))),
                    Standing::Refused(outcome) => break Some(Target::Refused(outcome)),
                    Standing::Again => break None,
                }
            };
            match target {
                Some(target) => return target,
                None => pause(&mut tries),
            }
        }
    }

    fn target_in_main(&self, view: &View, range: &Range, position: usize, before: Option<Version>) -> Target {
        match self.read_main(view, range, position) {
            Some(_) => Target::Free(before),
            None => Target::Refused(Outcome::Deleted),
        }
    }

    fn standing(&self, view: &View, header: &super::version::Header, shared: Option<RowLock>) -> Standing {
        let kind = header.kind();
        let word = header.begin.load(Ordering::Acquire);
        let committed = |ts: u64| {
            let deleted = kind == Kind::Deleted;
            if kind == Kind::Lock {
                // Its transaction is about to take it out of the head.
                Standing::Again
            } else if ts > view.ts().0 {
                Standing::Refused(Outcome::Newer { ts: CommitTs(ts), deleted })
            } else if deleted {
                Standing::Refused(Outcome::Deleted)
            } else {
                Standing::Free
            }
        };
        let Some(tag) = Tag::of_word(word) else {
            // Never: it was taken back since it was found.
            return if word == NEVER.0 { Standing::Again } else { committed(word) };
        };
        if tag == view.own() {
            return match kind {
                // What is beneath was looked at when it was locked, and nobody has changed it since.
                Kind::Lock => Standing::Free,
                _ if header.command() >= view.command() => Standing::Refused(Outcome::SelfModified),
                Kind::Row => Standing::Free,
                Kind::Deleted => Standing::Refused(Outcome::Deleted),
            };
        }
        match self.transactions.status(tag) {
            Status::Gone => Standing::Again,
            Status::Committed(ts) if kind != Kind::Lock => committed(ts),
            // Who locks the key only, while another changes the rest, sees what was there before.
            _ if shared.is_some_and(|lock| lock.bears(header.leaves_key())) && kind != Kind::Deleted => {
                Standing::Through
            }
            _ => Standing::Refused(Outcome::Conflict(tag)),
        }
    }

    /// Adds a whole row group as a range of its own. Seen, as all the transaction writes, when it commits.
    pub fn load(
        self: &Arc<Self>,
        worker: &Worker,
        view: &View,
        writes: &mut WriteSet,
        group: Arc<RowGroup>,
    ) -> Result<u64> {
        self.check_view(view);
        let main = MainPart::new(group, Vec::new(), 0);
        let range = Range::loaded(self.heads(), main, worker.tag_to_write(), view.writes_as());
        let number = self.add_range(range);
        writes.loaded(self, number);
        Ok(number)
    }

    pub(super) fn stamp_range(&self, number: u64, ts: CommitTs) {
        if let Some(range) = self.directory.get(number) {
            range.begin.store(ts.0, Ordering::Release);
        }
    }

    /// Of a range that its transaction takes back.
    pub(super) fn drop_range(&self, number: u64, worker: &Worker) {
        if let Some(range) = self.directory.get(number) {
            range.begin.store(NEVER.0, Ordering::Release);
            let horizon = worker.pin_horizon();
            let group = range.main(&horizon).map(|main| Arc::clone(&main.group));
            range.replace_main(None, worker);
            if let (Some(gone), Some(group)) = (self.gone.get(), group) {
                gone.gone_range(self, &horizon, number, &group);
            }
        }
    }
}

/// What a version in a head is to somebody who wants to write the row.
enum Standing {
    Free,
    Refused(Outcome),
    /// No obstacle; what is beneath decides.
    Through,
    /// It is changing: look again.
    Again,
}

/// Gives way to somebody who is in the middle of something short.
fn pause(tries: &mut u32) {
    *tries += 1;
    if *tries < 64 {
        spin();
    } else {
        std::thread::yield_now();
    }
}
