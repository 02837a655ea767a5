//! Indexes made of the rows that there are: read and sorted by several threads, then put in node by node; or, while others
//! write, entry by entry.

use super::{Entered, IndexKey, TableIndex, codec};
use crate::rows::Claim;
use crate::{BATCH_ROWS, IndexDef, ScanReader, ScanRequest, TableScan, TableVersion};
use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use parking_lot::Mutex;
use std::cmp::Ordering;
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId};
use tidepool_index::{Fingers, IndexBuilder};
use tidepool_tablespace::Tablespace;
use tidepool_txn::{Tag, Transactions, View};

/// Part of a node that is filled: the rest is for rows to come, as in PostgreSQL.
const FILL_PERCENT: u8 = 90;

/// An index to be made.
#[derive(Clone, Debug)]
pub struct BuildRequest {
    pub def: IndexDef,
    pub space: Arc<Tablespace>,
}

/// Told of a key that is there twice: by the index's place, the index and the key.
pub type Duplicate<'a> = &'a (dyn Fn(usize, &TableIndex, &[u8]) -> Result<()> + Sync);

/// Entries that are put in at a time, in order, while others write: some tens of megabytes with their keys.
const FILL_ENTRIES: usize = 1 << 20;

/// Keys that a thread read, in order in the end.
#[derive(Default)]
pub(super) struct Run {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

struct Entry {
    /// The key's first bytes, which mostly decide.
    start: u64,
    at: usize,
    len: u32,
    has_null: bool,
    row: RowId,
}

impl Run {
    pub fn push(&mut self, key: &IndexKey, row: RowId) {
        let bytes = key.bytes();
        let mut start = [0; 8];
        let len = bytes.len().min(8);
        start[..len].copy_from_slice(&bytes[..len]);
        self.entries.push(Entry {
            start: u64::from_be_bytes(start),
            at: self.bytes.len(),
            len: bytes.len() as u32,
            has_null: key.has_null(),
            row,
        });
        self.bytes.extend_from_slice(bytes);
    }

    fn key(&self, entry: &Entry) -> &[u8] {
        &self.bytes[entry.at..entry.at + entry.len as usize]
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Hands all keys out, with their rows.
    pub fn each(&self, mut take: impl FnMut(&[u8], RowId) -> Result<()>) -> Result<()> {
        self.entries.iter().try_for_each(|entry| take(self.key(entry), entry.row))
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.entries.clear();
    }

    pub fn sort(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        let key = |entry: &Entry| &bytes[entry.at..entry.at + entry.len as usize];
        self.entries.sort_unstable_by(|a, b| {
            a.start.cmp(&b.start).then_with(|| key(a).cmp(key(b))).then_with(|| a.row.cmp(&b.row))
        });
        self.bytes = bytes;
    }
}

/// Indexes over the rows that the version has, which nobody else writes meanwhile. `duplicate` is told of keys that are in
/// an index twice and may be there once only: the index's place among `requests`, and the key. `check` ends it with an
/// error.
pub fn build_indexes(
    version: &Arc<TableVersion>,
    transactions: &Arc<Transactions>,
    requests: &[BuildRequest],
    threads: usize,
    duplicate: Duplicate<'_>,
    check: &(dyn Fn() -> Result<()> + Sync),
) -> Result<Vec<TableIndex>> {
    // One after the other: a table's keys of one index are what is held.
    (requests.iter().enumerate())
        .map(|(place, request)| {
            let def = &request.def;
            let complete_from = version.view().ts();
            let space = Arc::clone(&request.space);
            let shape = TableIndex::create(&version.def, def, space, transactions, Some(complete_from))?;
            if version.rows_max() == 0 {
                return Ok(shape);
            }
            let runs = read(version, &shape, threads, check)?;
            let mut builder = IndexBuilder::new(Arc::clone(&request.space), Arc::clone(transactions), FILL_PERCENT)?;
            merge(&runs, check, &mut |key, entry| {
                let again = builder.push(key, entry.row)?;
                if again && def.unique && (def.nulls_not_distinct || !entry.has_null) {
                    duplicate(place, &shape, key)?;
                }
                Ok(())
            })?;
            let codec = codec(&version.def, def)?;
            Ok(TableIndex { tree: Arc::new(builder.finish()?), codec, ..shape })
        })
        .collect()
}

/// Entries of the rows that the version has, put into an index that others' rows go into meanwhile: those of every
/// transaction that could not be seen by the version's view have theirs from their writers. `wait` is called with a
/// transaction that may come to have a key that is to be unique, and returns when it is over; `duplicate` with a key that
/// two rows have.
pub fn fill_index(
    version: &Arc<TableVersion>,
    index: &TableIndex,
    threads: usize,
    wait: &dyn Fn(Tag) -> Result<()>,
    duplicate: &dyn Fn(&[u8]) -> Result<()>,
    check: &(dyn Fn() -> Result<()> + Sync),
) -> Result<()> {
    let view: &View = version.view();
    let unsettled = on_threads(version, index, threads, |reader| {
        let mut run = Run::default();
        let mut unsettled = Vec::new();
        let mut key = IndexKey::default();
        let mut fingers = Fingers::default();
        loop {
            let more = index.read_keys(reader, FILL_ENTRIES, &mut run, check)?;
            for (place, entry) in run.entries.iter().enumerate() {
                if place.is_multiple_of(1 << 12) {
                    check()?;
                }
                key.set(run.key(entry), entry.has_null);
                // Who is in the way may be gone by the time that the others are in.
                if index.enter(&version.table().rows, view, entry.row, &key, &mut fingers)? != Entered::Done {
                    unsettled.push((key.clone(), entry.row));
                }
            }
            if !more {
                return Ok(unsettled);
            }
            run.clear();
        }
    })?;
    for (key, row) in unsettled.into_iter().flatten() {
        index.settle(version, row, &key, wait, duplicate)?;
    }
    index.completed(view.ts());
    Ok(())
}

impl TableIndex {
    /// Puts in the entry of a row that the version has, in whose way another was.
    fn settle(
        &self,
        version: &TableVersion,
        row: RowId,
        key: &IndexKey,
        wait: &dyn Fn(Tag) -> Result<()>,
        duplicate: &dyn Fn(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let view: &View = version.view();
        let mut other = IndexKey::default();
        let mut claim = || self.claim(&version.table().rows, view, row, key, &mut other);
        loop {
            match claim()? {
                Claim::Undecided(tag) => wait(tag)?,
                // The row has another key by now, or is deleted. Older views look for it here.
                Claim::Free => return self.tree.insert(view, key.bytes(), row).map(drop),
                Claim::Has | Claim::Own => {
                    match self.enter(&version.table().rows, view, row, key, &mut Fingers::default())? {
                        Entered::Done => return Ok(()),
                        Entered::Wait(tag) => wait(tag)?,
                        // Unless this row has given its key up since, and the other one took it.
                        Entered::Taken(_) if matches!(claim()?, Claim::Has | Claim::Own) => {
                            return duplicate(key.bytes());
                        }
                        Entered::Taken(_) => {}
                    }
                }
            }
        }
    }

    /// Adds keys of rows that a reader has, sorted. False when there are no more.
    pub(super) fn read_keys(
        &self,
        reader: &mut ScanReader,
        entries_max: usize,
        run: &mut Run,
        check: &(dyn Fn() -> Result<()> + Sync),
    ) -> Result<bool> {
        let mut key = IndexKey::default();
        let mut more = true;
        while run.entries.len() < entries_max {
            let Some(batch) = reader.next_batch()? else {
                more = false;
                break;
            };
            check()?;
            let (rows, columns) = batch.columns().split_last().ok_or_else(|| Error::internal("rows without ids"))?;
            let rows = rows.as_primitive::<UInt64Type>().values();
            for (place, row) in rows.iter().enumerate() {
                self.key_at(columns, place, &mut key)?;
                run.push(&key, RowId(*row));
            }
        }
        run.sort();
        Ok(more)
    }
}

/// A sorted run a thread.
fn read(
    version: &Arc<TableVersion>,
    index: &TableIndex,
    threads: usize,
    check: &(dyn Fn() -> Result<()> + Sync),
) -> Result<Vec<Run>> {
    on_threads(version, index, threads, |reader| {
        let mut run = Run::default();
        index.read_keys(reader, usize::MAX, &mut run, check)?;
        Ok(run)
    })
}

/// What `work` makes of the key columns and ids of the version's rows, which threads share.
fn on_threads<T: Send>(
    version: &Arc<TableVersion>,
    index: &TableIndex,
    threads: usize,
    work: impl Fn(&mut ScanReader) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let ids = version.def.columns.len();
    let projection = index.positions().iter().copied().chain([ids]).collect();
    let request = ScanRequest {
        projection,
        filters: Vec::new(),
        dynamic: None,
        limit: None,
        batch_rows: BATCH_ROWS,
        forms: Vec::new(),
    };
    let scan = TableScan::new(Arc::clone(version), request);
    let threads = threads.min(version.parts().len()).max(1);
    if threads == 1 {
        return Ok(vec![work(&mut scan.reader())?]);
    }
    let done = Mutex::new(Vec::with_capacity(threads));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let one = work(&mut scan.reader());
                done.lock().push(one);
            });
        }
    });
    done.into_inner().into_iter().collect()
}

/// All entries in order.
fn merge(
    runs: &[Run],
    check: &(dyn Fn() -> Result<()> + Sync),
    take: &mut dyn FnMut(&[u8], &Entry) -> Result<()>,
) -> Result<()> {
    let mut next = vec![0; runs.len()];
    let mut taken = 0usize;
    loop {
        // Runs are as few as threads.
        let mut first: Option<(usize, &Entry)> = None;
        for (number, run) in runs.iter().enumerate() {
            let Some(entry) = run.entries.get(next[number]) else { continue };
            let is_before = first.is_none_or(|(other, best)| {
                let order = entry.start.cmp(&best.start);
                let order = order.then_with(|| run.key(entry).cmp(runs[other].key(best)));
                order.then_with(|| entry.row.cmp(&best.row)) == Ordering::Less
            });
            if is_before {
                first = Some((number, entry));
            }
        }
        let Some((number, entry)) = first else { return Ok(()) };
        next[number] += 1;
        take(runs[number].key(entry), entry)?;
        taken += 1;
        if taken.is_multiple_of(1 << 16) {
            check()?;
        }
    }
}
