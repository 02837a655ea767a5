//! What a transaction wrote and read, in the order that it did: for its end, and for going back to savepoints.

use super::pod::PodWrite;
use super::reads::{Asked, TableReads};
use super::reclaim::{ABORTED, PLAIN, SUPERSEDED, TOMBSTONE};
use super::version::{Kind, Version};
use super::{RowLock, RowStore};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tidepool_base::{CommitTs, Result, RowId};
use tidepool_txn::{Commit, NEVER, Reads, Reclaim, Status, Tag, Validation, Worker};

/// Tables that a write set keeps between transactions, so as not to count their users at each.
const TABLES_KEPT: usize = 32;

struct Table {
    store: Arc<RowStore>,
    owner: Arc<dyn Reclaim>,
}

#[derive(Clone, Copy, Debug)]
enum Write {
    /// A version that is, or was, in the row's head, in the place of `before`.
    Version { version: Version, before: Option<Version> },
    /// As `Version`, of kind `Lock`.
    Lock { version: Version, before: Option<Version> },
    /// An entry in the table of shared locks.
    Shared,
    /// A version in the pod: the next of `WriteSet::in_pod`.
    Pod,
    /// A whole range; the row is its first.
    Range,
    /// The store itself, as its table's; and what was said of that before.
    Redefined(u64),
}

/// How far a transaction had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Savepoint(usize);

impl Savepoint {
    /// Rows that had been written, or locked.
    pub fn len(self) -> usize {
        self.0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// What a transaction did to a row, for another process to do again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done<'w> {
    Put(&'w [u8]),
    Deleted,
    Locked(RowLock),
}

/// One row of a transaction's redo record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'w> {
    Put {
        image: &'w [u8],
        /// What another transaction had left of the row in delta.
        replaced: Option<Replaced<'w>>,
    },
    Deleted,
    /// A whole range that was loaded; the row is its first.
    Loaded,
}

/// A row before a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced<'w> {
    pub image: &'w [u8],
    /// Since when it was so.
    pub ts: CommitTs,
}

/// A session's: of one transaction after another. Empty between them. It must be told of a transaction's end, by `stamp` or
/// `undo`, while the worker that wrote is at it.
#[derive(Default)]
pub struct WriteSet {
    tables: Vec<Table>,
    writes: Vec<(u32, RowId, Write)>,
    /// Those that are in the pod, in their order.
    in_pod: Vec<PodWrite>,
    /// Some of the writes are of kind `Lock`.
    has_locks: bool,
    /// What was read of rows that are not in these tables: at other hosts.
    elsewhere: Vec<Box<dyn Reads>>,
    /// By table; of serializable transactions.
    reads: Vec<(u32, TableReads)>,
    /// Of transactions before, emptied, for their memory.
    spare_reads: Vec<TableReads>,
    /// None: as of the beginning.
    exists_as_of: Option<CommitTs>,
}

impl std::fmt::Debug for WriteSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WriteSet({} writes to {} tables)", self.writes.len(), self.tables.len())
    }
}

impl WriteSet {
    pub fn new() -> WriteSet {
        WriteSet::default()
    }

    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Rows written, or locked.
    pub fn len(&self) -> usize {
        self.writes.len()
    }

    #[inline(always)]
    fn table(&mut self, store: &Arc<RowStore>) -> u32 {
        let known = self.tables.iter().position(|table| Arc::ptr_eq(&table.store, store));
        known.unwrap_or_else(|| {
            self.tables.push(Table { store: Arc::clone(store), owner: Arc::clone(store) as _ });
            self.tables.len() - 1
        }) as u32
    }

    #[inline]
    pub(super) fn wrote(&mut self, store: &Arc<RowStore>, row: RowId, version: Version, before: Option<Version>) {
        let table = self.table(store);
        self.writes.push((table, row, Write::Version { version, before }));
    }

    pub(super) fn locked_alone(
        &mut self,
        store: &Arc<RowStore>,
        row: RowId,
        version: Version,
        before: Option<Version>,
    ) {
        let table = self.table(store);
        self.writes.push((table, row, Write::Lock { version, before }));
        self.has_locks = true;
    }

    pub(super) fn wrote_in_pod(&mut self, store: &Arc<RowStore>, row: RowId, write: PodWrite) {
        let table = self.table(store);
        self.writes.push((table, row, Write::Pod));
        self.in_pod.push(write);
    }

    /// Remembers, for a serializable transaction, something that was read elsewhere.
    pub fn read_elsewhere(&mut self, read: Box<dyn Reads>) {
        self.elsewhere.push(read);
    }

    /// Other hosts find what was written.
    pub fn is_shared(&self) -> bool {
        !self.in_pod.is_empty()
    }

    /// Before a commit: what other hosts find of it outlives this one. XX001 where the pod is damaged.
    pub fn secure(&self) -> Result<()> {
        match self.in_pod.first() {
            Some(first) => first.member.make_durable(self.in_pod.iter()),
            None => Ok(()),
        }
    }

    pub(super) fn locked(&mut self, store: &Arc<RowStore>, row: RowId) {
        let table = self.table(store);
        self.writes.push((table, row, Write::Shared));
    }

    pub(super) fn loaded(&mut self, store: &Arc<RowStore>, range: u64) {
        let table = self.table(store);
        self.writes.push((table, RowId::new(range, 0), Write::Range));
    }

    pub(super) fn owner(&mut self, store: &Arc<RowStore>) -> &Arc<dyn Reclaim> {
        let table = self.table(store);
        &self.tables[table as usize].owner
    }

    pub(super) fn reads_of(&mut self, store: &Arc<RowStore>) -> &mut TableReads {
        let table = self.table(store);
        let known = self.reads.iter().position(|(of, _)| *of == table).unwrap_or_else(|| {
            self.reads.push((table, self.spare_reads.pop().unwrap_or_default()));
            self.reads.len() - 1
        });
        &mut self.reads[known].1
    }

    /// The table is to have its rows in another store, or in other partitions, or to be no more. Nobody else may do so.
    pub fn redefined(&mut self, store: &Arc<RowStore>, worker: &Worker) {
        let word = worker.tag_to_write().word();
        let before = store.redefined.swap(word, Ordering::AcqRel);
        if before != word {
            let table = self.table(store);
            self.writes.push((table, RowId(0), Write::Redefined(before)));
        }
    }

    /// What exists, to the statements whose reads are remembered, is what did at `ts`.
    pub fn exists_as_of(&mut self, ts: CommitTs) {
        self.exists_as_of = Some(ts);
    }

    /// Whether rows of a table were written, or locked, that is not one session's alone.
    pub fn is_for_others(&self) -> bool {
        self.writes.iter().any(|(table, ..)| !self.tables[*table as usize].store.id().is_temporary())
    }

    pub fn savepoint(&self) -> Savepoint {
        Savepoint(self.writes.len())
    }

    /// Each change, in order; a row that was changed twice comes twice. What a redo record is made of.
    pub fn changes(&self) -> impl Iterator<Item = (&Arc<RowStore>, RowId, Change<'_>)> {
        self.writes.iter().filter_map(|(table, row, write)| {
            let change = match write {
                // SAFETY: written by this transaction, which is not over, so it was not retired.
                Write::Version { version, .. } => unsafe {
                    match version.header().kind() {
                        Kind::Row => {
                            let store = &self.tables[*table as usize].store;
                            Change::Put { image: version.image(), replaced: store.replaced_by(*version) }
                        }
                        Kind::Deleted => Change::Deleted,
                        Kind::Lock => return None,
                    }
                },
                Write::Range => Change::Loaded,
                Write::Lock { .. } | Write::Shared | Write::Pod | Write::Redefined(_) => return None,
            };
            Some((&self.tables[*table as usize].store, *row, change))
        })
    }

    /// All that was done, in order, as savepoints count it. `own`: the transaction's. `None`: it was more than to rows.
    pub fn done(&self, own: Tag) -> Option<Vec<(&Arc<RowStore>, RowId, Done<'_>)>> {
        let of = |(table, row, write): &'_ (u32, RowId, Write)| {
            let store = &self.tables[*table as usize].store;
            let done = match write {
                // SAFETY: written by this transaction, which is not over, so it was not retired.
                Write::Version { version, .. } | Write::Lock { version, .. } => unsafe {
                    let header = version.header();
                    match header.kind() {
                        Kind::Row => Done::Put(version.image()),
                        Kind::Deleted => Done::Deleted,
                        Kind::Lock if header.leaves_key() => Done::Locked(RowLock::NoKeyUpdate),
                        Kind::Lock => Done::Locked(RowLock::Update),
                    }
                },
                Write::Shared => Done::Locked(store.locks.held(*row, own)?),
                Write::Pod | Write::Range | Write::Redefined(_) => return None,
            };
            Some((store, *row, done))
        };
        self.writes.iter().map(of).collect()
    }

    /// 40001 unless everything that was remembered as read is the same as of the commit.
    pub fn validate(&self, check: &Validation<'_>) -> Result<()> {
        let asked = |(table, reads): &'_ (u32, TableReads)| -> Result<bool> {
            let store = &self.tables[*table as usize].store;
            let exists_as_of = self.exists_as_of.unwrap_or(CommitTs(0));
            Asked { store, reads, exists_as_of }.still_hold(check)
        };
        self.reads.iter().try_for_each(|reads| check.require(asked(reads)?))?;
        check.check(self.elsewhere.iter().map(|read| &**read))
    }

    /// The transaction has committed at `ts`.
    pub fn stamp(&mut self, ts: CommitTs, worker: &Worker) {
        if self.has_locks {
            // First: while its versions bear its tag, nobody takes them, or their heads, away.
            self.unlock(worker);
        }
        if let Some(first) = self.in_pod.first() {
            let member = Arc::clone(&first.member);
            member.stamp(std::mem::take(&mut self.in_pod), ts);
            member.tidy(worker);
        }
        for (table, row, write) in &self.writes {
            let table = &self.tables[*table as usize];
            match write {
                Write::Version { version, .. } => {
                    // SAFETY: in the head, or beneath this transaction's own, and not stamped yet.
                    let header = unsafe { version.header() };
                    let (older, kind) = (header.older(), header.kind());
                    if let Some(older) = older {
                        let mark = if header.keeps_entries() { PLAIN } else { SUPERSEDED };
                        table.store.retire(worker, &table.owner, ts, [older.marked(mark), row.0]);
                    }
                    if kind == Kind::Deleted {
                        table.store.retire(worker, &table.owner, ts, [version.marked(TOMBSTONE), row.0]);
                    }
                    header.begin.store(ts.0, Ordering::Release);
                }
                Write::Lock { .. } | Write::Pod => {}
                Write::Shared => table.store.locks.release(*row, worker.tag()),
                Write::Range => table.store.stamp_range(row.range(), ts),
                Write::Redefined(_) => table.store.redefined.store(ts.0, Ordering::Release),
            }
        }
        self.end();
    }

    /// The transaction has committed, having written nothing.
    pub fn end_reading(&mut self) {
        debug_assert!(self.writes.is_empty());
        self.end();
    }

    /// Takes locks out of heads at a commit, the last one first.
    fn unlock(&self, worker: &Worker) {
        let locks = || {
            self.writes.iter().rev().filter_map(|(table, row, write)| match write {
                Write::Lock { version, before } => Some((&self.tables[*table as usize], *row, *version, *before)),
                _ => None,
            })
        };
        for (table, row, version, before) in locks() {
            table.store.take_back(row, version, before);
        }
        let ts = worker.retirement_ts();
        for (table, row, version, _) in locks() {
            table.store.retire(worker, &table.owner, ts, [version.marked(PLAIN), row.0]);
        }
    }

    /// Undoes what was written since a savepoint. Inside a statement, or in `Worker::abort`.
    pub fn undo_to(&mut self, savepoint: Savepoint, worker: &Worker) {
        let undone = &self.writes[savepoint.0..];
        if undone.is_empty() {
            return;
        }
        let in_pod = undone.iter().filter(|(.., write)| matches!(write, Write::Pod)).count();
        let taken = self.in_pod.split_off(self.in_pod.len() - in_pod);
        if let Some(first) = taken.first() {
            let member = Arc::clone(&first.member);
            member.take_back(taken);
            member.tidy(worker);
        }
        let undone = &self.writes[savepoint.0..];
        for (table, row, write) in undone.iter().rev() {
            let store = &self.tables[*table as usize].store;
            match write {
                Write::Version { version, before } | Write::Lock { version, before } => {
                    store.take_back(*row, *version, *before);
                }
                Write::Pod => {}
                Write::Shared => store.locks.release(*row, worker.tag()),
                Write::Range => store.drop_range(row.range(), worker),
                Write::Redefined(before) => store.redefined.store(*before, Ordering::Release),
            }
        }
        let ts = worker.retirement_ts();
        for (table, row, write) in undone {
            if let Write::Version { version, .. } | Write::Lock { version, .. } = write {
                // SAFETY: taken back, not retired yet.
                let header = unsafe { version.header() };
                let mark = if header.kind() == Kind::Row && !header.keeps_entries() { ABORTED } else { PLAIN };
                let table = &self.tables[*table as usize];
                table.store.retire(worker, &table.owner, ts, [version.marked(mark), row.0]);
            }
        }
        self.writes.truncate(savepoint.0);
    }

    /// Undoes everything: for `Worker::abort`.
    pub fn undo(&mut self, worker: &Worker) {
        self.undo_to(Savepoint(0), worker);
        self.end();
    }

    fn end(&mut self) {
        self.writes.clear();
        self.elsewhere.clear();
        self.has_locks = false;
        for (_, mut reads) in self.reads.drain(..) {
            if self.spare_reads.len() < TABLES_KEPT {
                reads.clear();
                self.spare_reads.push(reads);
            }
        }
        if self.tables.len() > TABLES_KEPT {
            self.tables.clear();
        }
    }

    /// Lets go of the tables that it knows. Between transactions.
    pub fn forget_tables(&mut self) {
        debug_assert!(self.is_empty());
        self.tables.clear();
    }
}

impl RowStore {
    /// What a version has replaced, if that is a row that another transaction wrote.
    ///
    /// # Safety
    /// The version is of a transaction that is not over, and was not taken back: what it replaced is retired by that transaction's commit.
    unsafe fn replaced_by<'w>(&self, version: Version) -> Option<Replaced<'w>> {
        // SAFETY: the caller's.
        let header = unsafe { version.header() };
        let older = header.older()?;
        // SAFETY: as above.
        let before = unsafe { older.header() };
        if before.kind() != Kind::Row {
            return None;
        }
        loop {
            let word = before.begin.load(Ordering::Acquire);
            let Some(tag) = Tag::of_word(word) else {
                // SAFETY: as above.
                let image = unsafe { older.image() };
                return (word != NEVER.0).then_some(Replaced { image, ts: CommitTs(word) });
            };
            if word == header.begin.load(Ordering::Relaxed) {
                return None;
            }
            match self.transactions.status(tag) {
                // It is stamped by now.
                Status::Gone => std::hint::spin_loop(),
                Status::Committed(ts) => {
                    // SAFETY: as above.
                    return Some(Replaced { image: unsafe { older.image() }, ts: CommitTs(ts) });
                }
                Status::Running | Status::Committing(_) | Status::Aborted => return None,
            }
        }
    }

    /// Puts back what was in a head before a version of the transaction's own, and dates the version as never.
    pub(super) fn take_back(&self, row: RowId, version: Version, before: Option<Version>) {
        let range = self.directory.get(row.range());
        // SAFETY: the version is in the head, or beneath another one of the transaction's that is.
        let head = range.and_then(|range| unsafe { range.head_unpinned(row.position()) });
        let Some(head) = head else { return };
        if head.load() == super::version::Found::Version(version) {
            head.restore(before);
        }
        // SAFETY: the transaction's own, and not retired yet.
        unsafe { version.header() }.begin.store(NEVER.0, Ordering::Release);
    }
}

/// A transaction that is written to no log.
impl Commit for WriteSet {
    fn reserve(&mut self) -> Result<()> {
        self.secure()
    }

    fn is_shared(&self) -> bool {
        WriteSet::is_shared(self)
    }

    fn validate(&mut self, check: &Validation<'_>) -> Result<()> {
        WriteSet::validate(self, check)
    }

    fn append(&mut self, _: CommitTs) {}

    fn stamp(&mut self, ts: CommitTs, worker: &Worker) {
        WriteSet::stamp(self, ts, worker);
    }

    fn end_reading(&mut self) {
        WriteSet::end_reading(self);
    }
}
