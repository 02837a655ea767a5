//! The row store against a simple model, and against what must hold while threads write and ranges are merged.

#![cfg_attr(loom, allow(unused_imports, dead_code))]

#[cfg(not(loom))]
mod apply;
#[cfg(not(loom))]
mod history;
#[cfg(loom)]
mod model;
#[cfg(not(loom))]
mod pods;
#[cfg(not(loom))]
mod single;
#[cfg(not(loom))]
mod threads;

use super::*;
use crate::testing::{heap_space, noise, spaces, table};
use crate::{ColumnFilter, CompareOp, Datum, ROW_GROUP_ROWS, RowGroup, Segment};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tidepool_base::{CommitTs, Result, RowGroupId, RowId, SqlState, SqlType, StoreId};
use tidepool_tablespace::{Purpose, Tablespace};
use tidepool_txn::{Commit, Isolation, Tag, Transactions, View, Worker};

/// A half-full table costs Miri minutes.
const STEPS: usize = if cfg!(miri) { 150 } else { 2500 };

struct Fixture {
    all: Arc<Transactions>,
    memory: Arc<VersionMemory>,
    /// Where heads and main are.
    near: Arc<Tablespace>,
    store: Arc<RowStore>,
}

fn layout() -> RowLayout {
    RowLayout::new(&table(&[("id", SqlType::BigInt), ("value", SqlType::BigInt), ("note", SqlType::Text)])).unwrap()
}

impl Fixture {
    fn new() -> Fixture {
        let spaces = spaces();
        Fixture::over(&spaces.near(), &spaces.far())
    }

    /// Heads and versions in 2 MiB together, and main, too.
    fn tiny() -> Fixture {
        let space = heap_space();
        Fixture::over(&space, &space)
    }

    /// Of who follows another's log, from its beginning.
    fn following() -> Fixture {
        let spaces = spaces();
        Fixture::of(Transactions::following(CommitTs(0)), &spaces.near(), &spaces.far())
    }

    fn tiny_following() -> Fixture {
        let space = heap_space();
        Fixture::of(Transactions::following(CommitTs(0)), &space, &space)
    }

    fn over(near: &Arc<Tablespace>, delta: &Arc<Tablespace>) -> Fixture {
        Fixture::of(Transactions::starting_after(CommitTs(0)), near, delta)
    }

    fn of(all: Arc<Transactions>, near: &Arc<Tablespace>, delta: &Arc<Tablespace>) -> Fixture {
        let memory = VersionMemory::new(delta);
        let store = RowStore::new(StoreId(1), &all, layout(), &memory, near);
        Fixture { all, memory, near: Arc::clone(near), store }
    }

    fn session(&self) -> Session {
        Session {
            worker: self.all.worker().unwrap(),
            writes: WriteSet::new(),
            store: Arc::clone(&self.store),
            image: Vec::new(),
        }
    }

    fn encode(&self, batch: &RecordBatch) -> Result<RowGroup> {
        static IDS: AtomicU64 = AtomicU64::new(1);
        let segments = (batch.columns().iter().zip(batch.schema().fields()))
            .map(|(array, field)| Segment::encode(array, field, &self.near).map(Arc::new))
            .collect::<Result<_>>()?;
        RowGroup::from_segments(RowGroupId(IDS.fetch_add(1, Ordering::Relaxed)), segments)
    }

    fn merge(&self, worker: &Worker, number: u64) -> Result<Merged> {
        self.store.merge_range(worker, number, &mut |batch| self.encode(batch))
    }

    fn check_empty(self) {
        let (memory, delta) = (self.memory, Arc::clone(self.store.memory().tablespace()));
        // Of one who follows the time stands still.
        self.all.promote(CommitTs(0));
        let worker = self.all.worker().unwrap();
        while worker.collect() > 0 {}
        drop(worker);
        assert_eq!(Arc::strong_count(&self.store), 1);
        drop(self.store);
        assert_eq!(Arc::strong_count(&memory), 1);
        drop(memory);
        assert_eq!(delta.bytes(Purpose::Delta), 0, "every version is freed once");
    }
}

struct Session {
    worker: Worker,
    writes: WriteSet,
    store: Arc<RowStore>,
    image: Vec<u8>,
}

fn batch(rows: &[(i64, i64, &str)]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| Some(row.0)).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| Some(row.1)).collect::<Int64Array>()),
        Arc::new(rows.iter().map(|row| Some(row.2)).collect::<StringViewArray>()),
    ];
    RecordBatch::try_new(layout().schema().clone(), columns).unwrap()
}

fn where_id(op: CompareOp, id: i64) -> ScanRead {
    ScanRead::new(&[ColumnFilter::Compare { column: 0, op, value: Datum::Int(id) }], None)
}

fn note_of(value: i64) -> String {
    "x".repeat(value.unsigned_abs() as usize % 90)
}

/// Id and value of a row wherever it lies; its note must go with its value.
fn row_of(store: &RowStore, row: RowRef<'_>) -> (i64, i64) {
    let (id, value, note) = match row {
        RowRef::Version(image) => {
            let number = |column| match store.layout().value(image, column) {
                Value::Int(number) => number,
                other => panic!("{other:?}"),
            };
            let Value::Bytes(note) = store.layout().value(image, 2) else { panic!() };
            (number(0), number(1), String::from_utf8(note.to_vec()).unwrap())
        }
        RowRef::Main { group, position } => {
            let column = |column: usize| group.segments()[column].decode(position..position + 1).unwrap();
            let number = |at| column(at).as_primitive::<Int64Type>().value(0);
            (number(0), number(1), column(2).as_string_view().value(0).to_string())
        }
    };
    assert_eq!(note, note_of(value), "an image is not of one piece");
    (id, value)
}

impl Session {
    fn begin(&mut self, isolation: Isolation) {
        self.worker.begin(isolation).unwrap();
    }

    fn set(&mut self, id: i64, value: i64) {
        let rows = batch(&[(id, value, &note_of(value))]);
        self.store.layout().rows(&rows).unwrap().image(0, &mut self.image).unwrap();
    }

    fn insert(&mut self, id: i64, value: i64) -> Result<RowId> {
        self.set(id, value);
        let view = self.worker.snapshot();
        self.store.insert(&self.worker, &view, &mut self.writes, &self.image)
    }

    fn update(&mut self, row: RowId, id: i64, value: i64) -> Result<Outcome> {
        self.set(id, value);
        let view = self.worker.snapshot();
        self.store.update(&self.worker, &view, &mut self.writes, row, &self.image, Keys::LeaveUnique)
    }

    fn delete(&mut self, row: RowId) -> Result<Outcome> {
        let view = self.worker.snapshot();
        self.store.delete(&self.worker, &view, &mut self.writes, row)
    }

    fn lock(&mut self, row: RowId, lock: RowLock) -> Outcome {
        let view = self.worker.snapshot();
        self.store.lock_row(&self.worker, &view, &mut self.writes, row, lock).unwrap()
    }

    fn next(&self) {
        self.worker.next_command().unwrap();
    }

    fn commit(&mut self) -> Result<Option<CommitTs>> {
        self.worker.commit(&mut self.writes)
    }

    fn abort(&mut self) {
        let writes = &mut self.writes;
        self.worker.abort(|worker| writes.undo(worker));
        assert!(self.writes.is_empty());
    }

    fn read(&self, row: RowId) -> Option<(i64, i64)> {
        let view = self.worker.snapshot();
        self.store.read(&view, row).map(|found| row_of(&self.store, found))
    }

    fn scan(&self) -> BTreeMap<RowId, (i64, i64)> {
        scan(&self.store, &self.worker.snapshot())
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.abort();
    }
}

fn scan(store: &RowStore, view: &View) -> BTreeMap<RowId, (i64, i64)> {
    let mut found = BTreeMap::new();
    for number in 0..store.ranges() {
        let range = store.range(view, number).unwrap();
        let decoded = range.group().map(|group| {
            let column = |at: usize| group.segments()[at].decode(0..group.rows()).unwrap();
            (column(0), column(1))
        });
        let mut versions = Vec::new();
        for window in 0..store.range_usage(view, number).used.div_ceil(64) {
            versions.clear();
            let mut shown = range.window(window, &mut versions);
            for (position, image) in &versions {
                let row = RowId::new(number, *position as usize);
                assert!(found.insert(row, row_of(store, RowRef::Version(image))).is_none());
            }
            while shown != 0 {
                let position = window * 64 + shown.trailing_zeros() as usize;
                shown &= shown - 1;
                let (ids, values) = decoded.as_ref().unwrap();
                let number_at = |array: &ArrayRef| array.as_primitive::<Int64Type>().value(position);
                let value = (number_at(ids), number_at(values));
                assert!(found.insert(RowId::new(number, position), value).is_none());
            }
        }
    }
    found
}
