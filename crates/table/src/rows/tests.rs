//! The row store against a simple model, and against what must hold while threads write and ranges are merged.

use super::*;
use crate::testing::{heap_space, noise, spaces, table};
use crate::{ROW_GROUP_ROWS, RowGroup, Segment};
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tidepool_base::{CommitTs, Result, RowGroupId, RowId, SqlState, SqlType};
use tidepool_tablespace::{Purpose, Tablespace};
use tidepool_txn::{Isolation, Tag, Transactions, View, Worker};

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

    fn over(near: &Arc<Tablespace>, delta: &Arc<Tablespace>) -> Fixture {
        let all = Transactions::starting_after(CommitTs(0));
        let memory = VersionMemory::new(delta);
        let store = RowStore::new(&all, layout(), &memory, near);
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
        self.store.update(&self.worker, &view, &mut self.writes, row, &self.image, true)
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

#[test]
fn a_row_goes_through_its_life() {
    let fixture = Fixture::tiny();
    let (mut one, mut two) = (fixture.session(), fixture.session());
    one.begin(Isolation::ReadCommitted);
    two.begin(Isolation::RepeatableRead);
    let row = one.insert(1, 10).unwrap();
    assert_eq!(one.read(row), None, "a command does not see its own rows");
    one.next();
    assert_eq!(one.read(row), Some((1, 10)));
    assert_eq!(two.read(row), None);
    assert_eq!(two.delete(row).unwrap(), Outcome::Conflict(one.worker.tag()));
    let savepoint = one.writes.savepoint();
    assert_eq!(one.update(row, 1, 11).unwrap(), Outcome::Written);
    assert_eq!(one.update(row, 1, 12).unwrap(), Outcome::SelfModified);
    one.next();
    assert_eq!(one.read(row), Some((1, 11)));
    one.writes.undo_to(savepoint, &one.worker);
    assert_eq!(one.read(row), Some((1, 10)));
    let c = one.commit().unwrap().unwrap();
    assert_eq!(two.read(row), None);
    assert_eq!(two.delete(row).unwrap(), Outcome::Newer { ts: c, deleted: false });
    two.abort();
    two.begin(Isolation::ReadCommitted);
    assert_eq!(two.read(row), Some((1, 10)));
    assert_eq!(two.delete(row).unwrap(), Outcome::Written);
    two.next();
    assert_eq!(two.read(row), None);
    assert_eq!(two.delete(row).unwrap(), Outcome::Deleted);
    assert_eq!(one.read(row), Some((1, 10)));
    let changes: Vec<_> = two.writes.changes().map(|(_, row, change)| (row, change)).collect();
    assert_eq!(changes, [(row, Change::Deleted)]);
    two.commit().unwrap();
    assert_eq!(one.read(row), None);
    assert_eq!(one.scan().len(), 0);
    drop((one, two));
    fixture.check_empty();
}

#[test]
fn row_locks_keep_off_whom_they_should() {
    use RowLock::*;
    // Of PostgreSQL's table of conflicting row-level locks.
    let conflicts = |held: RowLock, wanted: RowLock| match (held, wanted) {
        (KeyShare, Update) | (Update, KeyShare) => true,
        (KeyShare, _) | (_, KeyShare) => false,
        (Share, Share) => false,
        _ => true,
    };
    let fixture = Fixture::tiny();
    let (mut one, mut two) = (fixture.session(), fixture.session());
    one.begin(Isolation::ReadCommitted);
    let row = one.insert(1, 1).unwrap();
    one.commit().unwrap();
    for held in [KeyShare, Share, NoKeyUpdate, Update] {
        for wanted in [KeyShare, Share, NoKeyUpdate, Update] {
            one.begin(Isolation::ReadCommitted);
            two.begin(Isolation::ReadCommitted);
            assert_eq!(one.lock(row, held), Outcome::Written);
            assert_eq!(one.lock(row, held), Outcome::Written, "a lock is had once and for all");
            let expected = if conflicts(held, wanted) { Outcome::Conflict(one.worker.tag()) } else { Outcome::Written };
            assert_eq!(two.lock(row, wanted), expected, "{held:?}, then {wanted:?}");
            assert_eq!(two.read(row), Some((1, 1)), "readers pass over locks");
            if expected != Outcome::Written {
                one.commit().unwrap();
                assert_eq!(two.lock(row, wanted), Outcome::Written);
            }
            two.abort();
            one.abort();
        }
        // Updates that leave the key alone, and deletions.
        one.begin(Isolation::ReadCommitted);
        two.begin(Isolation::ReadCommitted);
        assert_eq!(one.lock(row, held), Outcome::Written);
        let conflict = Outcome::Conflict(one.worker.tag());
        let expected = if conflicts(held, NoKeyUpdate) { conflict } else { Outcome::Written };
        assert_eq!(two.update(row, 1, 2).unwrap(), expected, "{held:?}");
        two.abort();
        two.begin(Isolation::ReadCommitted);
        assert_eq!(two.delete(row).unwrap(), conflict, "{held:?}");
        two.abort();
        // Who has the row may write it.
        assert_eq!(one.update(row, 1, 1).unwrap(), Outcome::Written);
        one.commit().unwrap();
    }
    // Of several locks of one transaction none is left at its end.
    one.begin(Isolation::ReadCommitted);
    for lock in [KeyShare, NoKeyUpdate, Share, Update] {
        assert_eq!(one.lock(row, lock), Outcome::Written);
    }
    one.commit().unwrap();
    // A lock that is taken back with a savepoint keeps nobody off.
    one.begin(Isolation::ReadCommitted);
    two.begin(Isolation::ReadCommitted);
    one.insert(2, 2).unwrap();
    let savepoint = one.writes.savepoint();
    assert_eq!(one.lock(row, Update), Outcome::Written);
    one.next();
    assert_eq!(one.update(row, 1, 5).unwrap(), Outcome::Written);
    one.writes.undo_to(savepoint, &one.worker);
    assert_eq!(two.update(row, 1, 1).unwrap(), Outcome::Written);
    two.commit().unwrap();
    drop((one, two));
    fixture.check_empty();
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn a_loaded_row_group_comes_with_its_transaction() {
    let fixture = Fixture::new();
    let (mut one, two) = (fixture.session(), fixture.session());
    let rows: Vec<(i64, i64, String)> = (0..1000).map(|i| (i, 2 * i, note_of(2 * i))).collect();
    let rows: Vec<(i64, i64, &str)> = rows.iter().map(|(id, value, note)| (*id, *value, note.as_str())).collect();
    let group = Arc::new(fixture.encode(&batch(&rows)).unwrap());
    for commit in [false, true] {
        one.begin(Isolation::ReadCommitted);
        let number = {
            let view = one.worker.snapshot();
            fixture.store.load(&one.worker, &view, &mut one.writes, Arc::clone(&group)).unwrap()
        };
        one.next();
        let row = RowId::new(number, 17);
        assert_eq!(one.read(row), Some((17, 34)));
        assert_eq!(one.update(row, 17, 35).unwrap(), Outcome::Written);
        assert_eq!(two.read(row), None);
        assert_eq!(fixture.merge(&two.worker, number).unwrap(), Merged::Nothing);
        if commit {
            one.commit().unwrap();
            assert_eq!(two.scan().len(), 1000);
            assert_eq!(two.read(row), Some((17, 35)));
            assert_eq!(two.read(RowId::new(number, 1000)), None);
        } else {
            one.abort();
            assert_eq!(two.scan().len(), 0);
        }
    }
    drop((one, two, group));
    fixture.check_empty();
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn a_merge_changes_nothing_that_anybody_sees() {
    let fixture = Fixture::new();
    let (mut one, reader, merger) = (fixture.session(), fixture.session(), fixture.all.worker().unwrap());
    one.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..700).map(|i| one.insert(i, i).unwrap()).collect();
    one.commit().unwrap();
    let old = reader.worker.hold();
    let before = scan(&fixture.store, &old);
    one.begin(Isolation::ReadCommitted);
    for (i, row) in rows.iter().enumerate() {
        match i % 5 {
            0 => assert_eq!(one.update(*row, i as i64, 1000).unwrap(), Outcome::Written),
            1 => assert_eq!(one.delete(*row).unwrap(), Outcome::Written),
            _ => {}
        }
    }
    one.commit().unwrap();
    let after = reader.scan();
    // What the old snapshot sees goes to main; the heads stay while it looks.
    assert_eq!(fixture.merge(&merger, 0).unwrap(), Merged::Replaced { rows: 700, dead: 0 });
    assert!(!fixture.store.finish_merge(&merger, 0));
    assert_eq!(fixture.merge(&merger, 0).unwrap(), Merged::Busy);
    assert_eq!(scan(&fixture.store, &old), before);
    assert_eq!(reader.scan(), after);
    // Who comes after the replacement looks at the new main, and holds nothing up.
    let second = reader.worker.hold();
    drop(old);
    assert!(fixture.store.finish_merge(&merger, 0));
    assert_eq!(scan(&fixture.store, &second), after);
    drop(second);
    assert_eq!(reader.scan(), after);
    assert_eq!(fixture.merge(&merger, 0).unwrap(), Merged::Replaced { rows: 560, dead: 140 });
    while !fixture.store.finish_merge(&merger, 0) {}
    assert_eq!(reader.scan(), after);
    let usage = fixture.store.range_usage(&reader.worker.snapshot(), 0);
    assert_eq!((usage.headed, usage.main, usage.dead), (0, 700, 140));
    while merger.collect() + one.worker.collect() > 0 {}
    assert_eq!(fixture.near.bytes(Purpose::Delta), 0, "no heads are left where main has everything");
    assert_eq!(fixture.merge(&merger, 0).unwrap(), Merged::Nothing);
    // Deletions alone keep the row group.
    one.begin(Isolation::ReadCommitted);
    for row in &rows[650..] {
        let _ = one.delete(*row).unwrap();
    }
    one.commit().unwrap();
    let group = |store: &RowStore| {
        let view = reader.worker.snapshot();
        store.range(&view, 0).unwrap().group().map(Arc::as_ptr)
    };
    let (before, after) = (group(&fixture.store), reader.scan());
    assert!(matches!(fixture.merge(&merger, 0).unwrap(), Merged::Replaced { rows: 520, .. }));
    while !fixture.store.finish_merge(&merger, 0) {}
    assert_eq!((group(&fixture.store), reader.scan()), (before, after));
    // And of a range without rows nothing stays.
    one.begin(Isolation::ReadCommitted);
    for row in &rows {
        let _ = one.delete(*row).unwrap();
    }
    one.commit().unwrap();
    assert_eq!(fixture.merge(&merger, 0).unwrap(), Merged::Replaced { rows: 0, dead: 0 });
    while !fixture.store.finish_merge(&merger, 0) {}
    assert_eq!(group(&fixture.store), None);
    assert!(reader.scan().is_empty());
    drop((one, reader, merger));
    fixture.check_empty();
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn a_transaction_that_runs_out_of_memory_aborts_and_leaves_nothing() {
    let fixture = Fixture::tiny();
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let kept = session.insert(-1, 40).unwrap();
    session.commit().unwrap();
    for _ in 0..3 {
        session.begin(Isolation::ReadCommitted);
        let error = loop {
            session.next();
            match session.insert(1, 80).and_then(|_| session.update(kept, -1, 41)) {
                Ok(outcome) => assert_eq!(outcome, Outcome::Written),
                Err(error) => break error,
            }
        };
        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY, "{error}");
        session.abort();
        assert_eq!(session.scan(), BTreeMap::from([(kept, (-1, 40))]));
        while session.worker.collect() > 0 {}
    }
    drop(session);
    fixture.check_empty();
}

/// What a model knows of a row: its states by commit timestamp.
type History = BTreeMap<RowId, Vec<(CommitTs, Option<(i64, i64)>)>>;

fn at(history: &History, row: RowId, ts: CommitTs) -> Option<(i64, i64)> {
    history.get(&row)?.iter().rev().find(|(since, _)| *since <= ts)?.1
}

struct Modelled {
    session: Session,
    /// By row, and in the order of writing.
    pending: Vec<(RowId, Option<(i64, i64)>)>,
    savepoints: Vec<(Savepoint, usize)>,
    isolation: Isolation,
}

impl Modelled {
    fn sees(&self, history: &History, row: RowId, ts: CommitTs) -> Option<(i64, i64)> {
        let own = self.pending.iter().rev().find(|(written, _)| *written == row);
        own.map_or_else(|| at(history, row, ts), |(_, state)| *state)
    }

    fn has(&self, row: RowId) -> bool {
        self.pending.iter().any(|(written, _)| *written == row)
    }
}

/// Several sessions, one step at a time, so that the model knows what must come of each.
fn run_history(seed: u64, steps: usize, fixture: Fixture) {
    let mut next = noise(seed);
    let mut history = History::new();
    let mut rows: Vec<RowId> = Vec::new();
    let mut sessions: Vec<Modelled> = (0..4)
        .map(|_| Modelled {
            session: fixture.session(),
            pending: Vec::new(),
            savepoints: Vec::new(),
            isolation: Isolation::ReadCommitted,
        })
        .collect();
    let merger = fixture.all.worker().unwrap();
    let mut held: Vec<tidepool_txn::HeldSnapshot> = Vec::new();
    for step in 0..steps {
        let who = next() as usize % sessions.len();
        let others: Vec<(Tag, Vec<RowId>)> = (sessions.iter().enumerate())
            .filter(|(other, _)| *other != who)
            .map(|(_, other)| (other.session.worker.tag(), other.pending.iter().map(|(row, _)| *row).collect()))
            .collect();
        let me = &mut sessions[who];
        let row = if rows.is_empty() { RowId::new(0, 0) } else { rows[next() as usize % rows.len()] };
        if !me.session.worker.is_active() {
            me.isolation = if next().is_multiple_of(2) { Isolation::ReadCommitted } else { Isolation::RepeatableRead };
            me.session.begin(me.isolation);
        }
        let value = next() as i64 % 100_000;
        match next() % 32 {
            0..=7 => match me.session.insert(step as i64, value) {
                Ok(row) => {
                    rows.push(row);
                    me.pending.push((row, Some((step as i64, value))));
                    me.session.next();
                }
                Err(error) => assert_eq!(error.code(), SqlState::OUT_OF_MEMORY),
            },
            8..=19 => {
                let ts = me.session.worker.snapshot().ts();
                let seen = me.sees(&history, row, ts);
                let deletes = next().is_multiple_of(4);
                let id = seen.map_or(-1, |(id, _)| id);
                let outcome = if deletes { me.session.delete(row) } else { me.session.update(row, id, value) };
                let outcome = match outcome {
                    Ok(outcome) => outcome,
                    Err(error) => {
                        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
                        continue;
                    }
                };
                let holder = others.iter().find(|(_, written)| written.contains(&row));
                let newest = history.get(&row).and_then(|states| states.last());
                let expected = if let Some((tag, _)) = holder {
                    Outcome::Conflict(*tag)
                } else if me.has(row) {
                    if seen.is_some() { Outcome::Written } else { Outcome::Deleted }
                } else {
                    match newest {
                        Some((since, state)) if *since > ts => Outcome::Newer { ts: *since, deleted: state.is_none() },
                        Some((_, Some(_))) => Outcome::Written,
                        _ => Outcome::Deleted,
                    }
                };
                // Of a row that is gone for everybody nothing may be left to tell since when.
                let gone = matches!(expected, Outcome::Newer { deleted: true, .. }) && outcome == Outcome::Deleted;
                assert!(outcome == expected || gone, "step {step}: {outcome:?} in the place of {expected:?}");
                if outcome == Outcome::Written {
                    me.pending.push((row, (!deletes).then_some((id, value))));
                    me.session.next();
                }
            }
            20 => me.savepoints.push((me.session.writes.savepoint(), me.pending.len())),
            21 => {
                if let Some((savepoint, len)) = me.savepoints.pop() {
                    me.session.writes.undo_to(savepoint, &me.session.worker);
                    me.pending.truncate(len);
                }
            }
            22..=23 => {
                let ts = me.session.worker.snapshot().ts();
                assert_eq!(me.session.read(row), me.sees(&history, row, ts), "step {step}");
            }
            24 => {
                let view = me.session.worker.snapshot();
                let expected: BTreeMap<RowId, (i64, i64)> = (rows.iter())
                    .filter_map(|row| me.sees(&history, *row, view.ts()).map(|state| (*row, state)))
                    .collect();
                assert_eq!(scan(&me.session.store, &view), expected, "step {step}");
            }
            25..=27 => {
                if let Some(ts) = me.session.commit().unwrap() {
                    let last: BTreeMap<RowId, _> = me.pending.drain(..).collect();
                    for (row, state) in last {
                        history.entry(row).or_default().push((ts, state));
                    }
                }
                me.savepoints.clear();
                me.pending.clear();
            }
            28 => {
                me.session.abort();
                me.savepoints.clear();
                me.pending.clear();
            }
            29 => {
                for number in 0..fixture.store.ranges() {
                    if let Err(error) = fixture.merge(&merger, number) {
                        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
                    }
                }
            }
            30 => {
                for number in 0..fixture.store.ranges() {
                    fixture.store.finish_merge(&merger, number);
                }
                merger.collect();
            }
            _ => {
                if held.len() < 3 {
                    // Without the holder's own rows.
                    held.push(merger.hold());
                } else {
                    let snapshot = held.swap_remove(next() as usize % 3);
                    let expected: BTreeMap<RowId, (i64, i64)> = (rows.iter())
                        .filter_map(|row| at(&history, *row, snapshot.ts()).map(|state| (*row, state)))
                        .collect();
                    assert_eq!(scan(&fixture.store, &snapshot), expected, "step {step}");
                }
            }
        }
        if next().is_multiple_of(200) {
            fixture.store.seal();
        }
    }
    held.clear();
    drop((sessions, merger));
    fixture.check_empty();
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn histories_of_several_sessions_agree_with_a_model() {
    for seed in 0..6 {
        run_history(seed, STEPS, Fixture::new());
    }
}

#[test]
fn histories_agree_with_a_model_when_memory_runs_out() {
    for seed in if cfg!(miri) { 100..102 } else { 100..104 } {
        run_history(seed, STEPS, Fixture::tiny());
    }
}

/// Calls `body` with a fresh transaction until it commits, as a client does that tries again.
fn retry(session: &mut Session, isolation: Isolation, mut body: impl FnMut(&mut Session) -> Result<bool, Outcome>) {
    loop {
        session.begin(isolation);
        match body(session) {
            Ok(true) => {
                if session.commit().is_ok() {
                    return;
                }
                session.abort();
            }
            Ok(false) => {
                session.abort();
                return;
            }
            Err(Outcome::Conflict(tag)) => {
                // Whoever waits and is waited for gives up and starts again.
                let _ = session.worker.wait_for(tag, &|| Ok(()));
                session.abort();
            }
            Err(_) => session.abort(),
        }
    }
}

fn written(outcome: Result<Outcome>) -> Result<(), Outcome> {
    match outcome.unwrap() {
        Outcome::Written => Ok(()),
        other => Err(other),
    }
}

/// Money moves between accounts, on several threads, while a thread merges: the sum stays, to every snapshot.
#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn money_is_neither_made_nor_lost() {
    let fixture = Fixture::new();
    let accounts = 60;
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..accounts).map(|id| session.insert(id, 1000).unwrap()).collect();
    session.commit().unwrap();
    drop(session);
    let done = AtomicBool::new(false);
    let (fixture, rows) = (&fixture, &rows);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..3)
            .map(|thread| {
                scope.spawn(move || {
                    let mut session = fixture.session();
                    let mut next = noise(thread);
                    for _ in 0..1500 {
                        let (from, to) = (next() as usize % rows.len(), next() as usize % rows.len());
                        if from == to {
                            continue;
                        }
                        let isolation = [Isolation::RepeatableRead, Isolation::Serializable][next() as usize % 2];
                        let (gives_up, amount) = (next().is_multiple_of(8), next() as i64 % 50);
                        retry(&mut session, isolation, |session| {
                            let (id, balance) = session.read(rows[from]).unwrap();
                            written(session.update(rows[from], id, balance - amount))?;
                            session.next();
                            let savepoint = session.writes.savepoint();
                            let (other, theirs) = session.read(rows[to]).unwrap();
                            written(session.update(rows[to], other, theirs + amount + 7))?;
                            session.next();
                            session.writes.undo_to(savepoint, &session.worker);
                            written(session.update(rows[to], other, theirs + amount))?;
                            Ok(!gives_up)
                        });
                    }
                })
            })
            .collect();
        let (done, reader) = (
            &done,
            scope.spawn(|| {
                let worker = fixture.all.worker().unwrap();
                let mut scans = 0;
                while !done.load(Ordering::Relaxed) || scans == 0 {
                    let view = worker.snapshot();
                    let found = scan(&fixture.store, &view);
                    assert_eq!(found.len(), rows.len());
                    assert_eq!(found.values().map(|(_, value)| value).sum::<i64>(), 1000 * rows.len() as i64);
                    for row in rows {
                        assert_eq!(
                            fixture.store.read(&view, *row).map(|at| row_of(&fixture.store, at)),
                            Some(found[row])
                        );
                    }
                    scans += 1;
                }
            }),
        );
        let merger = scope.spawn(|| {
            let worker = fixture.all.worker().unwrap();
            let mut merges = 0;
            while !done.load(Ordering::Relaxed) {
                if matches!(fixture.merge(&worker, 0).unwrap(), Merged::Replaced { .. }) {
                    merges += 1;
                }
                fixture.store.finish_merge(&worker, 0);
                worker.collect();
            }
            merges
        });
        for writer in writers {
            writer.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        assert!(merger.join().unwrap() > 0);
    });
}

/// Rows are inserted, changed, locked and deleted in transactions that leave the sum of all values as it is, on several
/// threads, some of them aborted, some for want of memory; a thread merges, and one reads.
fn run_chaos(seed: u64, rounds: usize, fixture: Fixture) {
    let (accounts, threads) = (20, 3);
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..accounts).map(|id| session.insert(id, 1000).unwrap()).collect();
    session.commit().unwrap();
    drop(session);
    let more: Mutex<Vec<RowId>> = Mutex::default();
    let left = AtomicU64::new(threads);
    std::thread::scope(|scope| {
        let (fixture, rows, more, left) = (&fixture, &rows, &more, &left);
        for thread in 0..threads {
            scope.spawn(move || {
                let mut session = fixture.session();
                let mut next = noise(seed << 8 | thread);
                for _ in 0..rounds {
                    let isolation = [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable];
                    session.begin(isolation[next() as usize % 3]);
                    let mut inserted = None;
                    let done = one_transaction(&mut session, &mut next, rows, more, &mut inserted);
                    let commits = matches!(done, Ok(Outcome::Written)) && !next().is_multiple_of(8);
                    if let Err(error) = &done {
                        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY, "{error}");
                    }
                    if commits && session.commit().is_ok() {
                        more.lock().unwrap().extend(inserted);
                        continue;
                    }
                    if let Ok(Outcome::Conflict(tag)) = done {
                        // A deadlock is an error, and whoever gets it gives way as all do here.
                        let _ = session.worker.wait_for(tag, &|| Ok(()));
                    }
                    session.abort();
                    if done.is_err() {
                        session.worker.collect();
                    }
                }
                left.fetch_sub(1, Ordering::Relaxed);
            });
        }
        scope.spawn(move || {
            let worker = fixture.all.worker().unwrap();
            while left.load(Ordering::Relaxed) > 0 {
                let view = worker.snapshot();
                let found = scan(&fixture.store, &view);
                assert_eq!(found.values().map(|(_, value)| value).sum::<i64>(), 1000 * accounts, "seed {seed}");
                for (row, state) in &found {
                    assert_eq!(fixture.store.read(&view, *row).map(|at| row_of(&fixture.store, at)), Some(*state));
                }
            }
        });
        scope.spawn(move || {
            let worker = fixture.all.worker().unwrap();
            let mut next = noise(seed);
            while left.load(Ordering::Relaxed) > 0 {
                for number in 0..fixture.store.ranges() {
                    if let Err(error) = fixture.merge(&worker, number) {
                        assert_eq!(error.code(), SqlState::OUT_OF_MEMORY);
                    }
                    fixture.store.finish_merge(&worker, number);
                }
                worker.collect();
                if next().is_multiple_of(100) && fixture.store.ranges() < 4 {
                    fixture.store.seal();
                }
            }
        });
    });
    fixture.check_empty();
}

fn one_transaction(
    session: &mut Session,
    next: &mut impl FnMut() -> u64,
    rows: &[RowId],
    more: &Mutex<Vec<RowId>>,
    inserted: &mut Option<RowId>,
) -> Result<Outcome> {
    let (from, amount) = (rows[next() as usize % rows.len()], next() as i64 % 50);
    // What is read is locked first, or read committed would write what is out of date.
    let lock = [RowLock::NoKeyUpdate, RowLock::Update][next() as usize % 2];
    let view = session.worker.snapshot();
    let locked = session.store.lock_row(&session.worker, &view, &mut session.writes, from, lock)?;
    drop(view);
    if locked != Outcome::Written {
        return Ok(locked);
    }
    let (id, balance) = session.read(from).unwrap();
    session.writes.read_row(&session.store, from);
    let savepoint = session.writes.savepoint();
    if next().is_multiple_of(3) {
        let _ = session.update(from, id, -1)?;
        session.next();
        session.writes.undo_to(savepoint, &session.worker);
    }
    let target = {
        let more = more.lock().unwrap();
        if more.is_empty() { from } else { more[next() as usize % more.len()] }
    };
    match next() % 4 {
        0 if session.store.ranges() < 4 => {
            *inserted = Some(session.insert(-1, amount)?);
            session.update(from, id, balance - amount)
        }
        1 if target != from => {
            let view = session.worker.snapshot();
            let shared = [RowLock::Share, RowLock::KeyShare][next() as usize % 2];
            let locked = session.store.lock_row(&session.worker, &view, &mut session.writes, target, shared)?;
            drop(view);
            if locked != Outcome::Written {
                return Ok(locked);
            }
            session.update(from, id, balance)
        }
        2 | 3 if target != from => {
            let view = session.worker.snapshot();
            let locked =
                session.store.lock_row(&session.worker, &view, &mut session.writes, target, RowLock::Update)?;
            drop(view);
            if locked != Outcome::Written {
                return Ok(locked);
            }
            let (_, theirs) = session.read(target).unwrap();
            let outcome = session.delete(target)?;
            if outcome != Outcome::Written {
                return Ok(outcome);
            }
            session.update(from, id, balance + theirs)
        }
        _ => session.update(from, id, balance),
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there")]
fn chaos_leaves_the_sum_as_it_is() {
    run_chaos(1, 1500, Fixture::new());
    run_chaos(2, 1500, Fixture::tiny());
}

/// By seed, for as long as TIDEPOOL_STRESS_SECONDS says.
#[test]
#[cfg_attr(miri, ignore = "takes hours there")]
fn stress() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let seconds = std::time::Duration::from_secs(number("TIDEPOOL_STRESS_SECONDS", 0));
    let (mut seed, start) = (number("TIDEPOOL_STRESS_SEED", 1), std::time::Instant::now());
    while start.elapsed() < seconds {
        println!("seed {seed}");
        let fixture = || if seed.is_multiple_of(2) { Fixture::new() } else { Fixture::tiny() };
        run_history(seed, 5000, fixture());
        run_chaos(seed, 3000, fixture());
        seed += 1;
    }
}

/// Short enough for Miri: threads write the same rows, and free each other's versions.
#[test]
fn threads_share_rows() {
    let fixture = Fixture::tiny();
    let (threads, rounds) = (2, if cfg!(miri) { 25 } else { 500 });
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..4).map(|id| session.insert(id, 0).unwrap()).collect();
    session.commit().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (fixture, rows) = (&fixture, &rows);
            scope.spawn(move || {
                let mut session = fixture.session();
                let mut next = noise(thread);
                for round in 0..rounds {
                    let row = rows[next() as usize % rows.len()];
                    retry(&mut session, Isolation::RepeatableRead, |session| {
                        let (id, value) = session.read(row).unwrap();
                        written(session.update(row, id, value + 1))?;
                        Ok(true)
                    });
                    if round % 8 == thread {
                        session.worker.collect();
                    }
                    if round % 16 == 0 && thread == 0 {
                        fixture.merge(&session.worker, 0).unwrap();
                        fixture.store.finish_merge(&session.worker, 0);
                    }
                }
            });
        }
    });
    assert_eq!(session.scan().values().map(|(_, value)| value).sum::<i64>(), (threads * rounds) as i64);
    drop(session);
    fixture.check_empty();
}

/// Threads add one to counters, with `READ COMMITTED`'s way of going on with the newest version.
#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn no_update_is_lost() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..3).map(|id| session.insert(id, 0).unwrap()).collect();
    session.commit().unwrap();
    let (threads, rounds) = (3, 1500);
    let (fixture, rows) = (&fixture, &rows);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let mut session = fixture.session();
                let mut next = noise(thread);
                for _ in 0..rounds {
                    let row = rows[next() as usize % rows.len()];
                    session.begin(Isolation::ReadCommitted);
                    loop {
                        let (id, value) = session.read(row).unwrap();
                        // The view of the update may be newer than that of the read: lock, then read.
                        match session.lock(row, RowLock::NoKeyUpdate) {
                            Outcome::Written => {}
                            Outcome::Conflict(tag) => {
                                session.worker.wait_for(tag, &|| Ok(())).unwrap();
                                continue;
                            }
                            _ => continue,
                        }
                        let (_, newest) = session.read(row).unwrap();
                        assert!(newest >= value);
                        assert_eq!(session.update(row, id, newest + 1).unwrap(), Outcome::Written);
                        break;
                    }
                    session.commit().unwrap();
                }
            });
        }
    });
    let total: i64 = session.scan().values().map(|(_, value)| value).sum();
    assert_eq!(total, threads as i64 * rounds);
}

/// Two rows must not both be zero; each transaction looks at both (or at the whole table) and clears one.
#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn serializable_transactions_do_not_skew() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..2).map(|id| session.insert(id, 1).unwrap()).collect();
    session.commit().unwrap();
    let (fixture, rows) = (&fixture, &rows);
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            scope.spawn(move || {
                let mut session = fixture.session();
                let mut next = noise(thread);
                for round in 0..1000 {
                    let mine = next() as usize % 2;
                    retry(&mut session, Isolation::Serializable, |session| {
                        let values = rows.iter().map(|row| session.read(*row).unwrap().1).collect::<Vec<_>>();
                        assert_ne!(values, [0, 0], "write skew");
                        if round % 2 == 0 {
                            rows.iter().for_each(|row| session.writes.read_row(&session.store, *row));
                        } else {
                            session.writes.read_table(&session.store);
                        }
                        let value = if values[1 - mine] == 1 { 1 - values[mine] } else { 1 };
                        written(session.update(rows[mine], mine as i64, value))?;
                        Ok(true)
                    });
                }
            });
        }
    });
}

#[test]
fn a_row_that_comes_into_a_table_that_was_read_fails_a_serializable_transaction() {
    let fixture = Fixture::tiny();
    let (mut one, mut two) = (fixture.session(), fixture.session());
    one.begin(Isolation::Serializable);
    assert!(one.scan().is_empty());
    one.writes.read_table(&fixture.store);
    let mine = one.insert(1, 1).unwrap();
    two.begin(Isolation::ReadCommitted);
    two.insert(2, 2).unwrap();
    two.commit().unwrap();
    assert_eq!(one.commit().unwrap_err().code(), SqlState::SERIALIZATION_FAILURE);
    one.abort();
    assert_eq!(two.read(mine), None);
    // What a transaction read that wrote nothing is as of its snapshot, and nothing to the next one.
    one.begin(Isolation::Serializable);
    assert_eq!(one.scan().len(), 1);
    one.writes.read_table(&fixture.store);
    two.begin(Isolation::ReadCommitted);
    two.insert(3, 3).unwrap();
    two.commit().unwrap();
    assert_eq!(one.commit().unwrap(), None);
    one.begin(Isolation::Serializable);
    one.insert(4, 4).unwrap();
    two.begin(Isolation::ReadCommitted);
    two.insert(5, 5).unwrap();
    two.commit().unwrap();
    one.commit().unwrap();
}

/// Entries of an index in the roughest form: whoever writes a row with a value enters it; what is gone is dropped.
#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn an_index_is_told_what_is_gone() {
    #[derive(Default)]
    struct Entries(Mutex<BTreeSet<(i64, RowId)>>);
    struct Told(Arc<Entries>);
    fn value_of(store: &RowStore, row: RowRef<'_>) -> i64 {
        row_of(store, row).1
    }
    impl Gone for Told {
        fn gone(&self, store: &RowStore, horizon: &View, row: RowId, was: RowRef<'_>) {
            let value = value_of(store, was);
            // Under the index's lock, so that nobody enters the same meanwhile.
            let mut entries = self.0.0.lock().unwrap();
            if !store.any_version(horizon, row, &mut |other| value_of(store, other) == value) {
                entries.remove(&(value, row));
            }
        }
    }
    let fixture = Fixture::new();
    let entries = Arc::new(Entries::default());
    fixture.store.set_gone(Box::new(Told(Arc::clone(&entries))));
    let mut session = fixture.session();
    let merger = fixture.all.worker().unwrap();
    let mut next = noise(9);
    let mut rows: Vec<RowId> = Vec::new();
    for round in 0..1500 {
        session.begin(Isolation::ReadCommitted);
        for _ in 0..1 + next() % 4 {
            let value = next() as i64 % 5;
            let row = match next() % 6 {
                _ if rows.is_empty() => session.insert(0, value).unwrap(),
                0 => session.insert(0, value).unwrap(),
                1 => {
                    let _ = session.delete(rows[next() as usize % rows.len()]).unwrap();
                    session.next();
                    continue;
                }
                _ => {
                    let row = rows[next() as usize % rows.len()];
                    if session.update(row, 0, value).unwrap() != Outcome::Written {
                        continue;
                    }
                    row
                }
            };
            rows.push(row);
            entries.0.lock().unwrap().insert((value, row));
            session.next();
        }
        if next().is_multiple_of(4) {
            session.abort()
        } else {
            session.commit().unwrap();
        }
        if round % 40 == 0 {
            fixture.merge(&merger, 0).unwrap();
        }
        if round % 25 == 0 {
            fixture.store.finish_merge(&merger, 0);
            merger.collect();
        }
        let found: BTreeSet<(i64, RowId)> = session.scan().iter().map(|(row, (_, value))| (*value, *row)).collect();
        assert!(found.is_subset(&entries.0.lock().unwrap()), "round {round}: an entry is missing");
    }
    for _ in 0..2 {
        while !fixture.store.finish_merge(&merger, 0) {}
        while session.worker.collect() + merger.collect() > 0 {}
        fixture.merge(&merger, 0).unwrap();
    }
    while !fixture.store.finish_merge(&merger, 0) {}
    let found: BTreeSet<(i64, RowId)> = session.scan().iter().map(|(row, (_, value))| (*value, *row)).collect();
    assert_eq!(*entries.0.lock().unwrap(), found, "entries of what is gone are left");
    drop((session, merger));
    fixture.check_empty();
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn a_log_is_replayed_by_row_id() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let mut expected: HashMap<RowId, i64> = HashMap::new();
    session.begin(Isolation::ReadCommitted);
    for (range, position, value) in [(2, 5, 50), (0, 0, 1), (2, 5, 51), (1, ROW_GROUP_ROWS - 1, 3)] {
        let row = RowId::new(range, position);
        session.set(7, value);
        let view = session.worker.snapshot();
        fixture.store.put(&session.worker, &view, &mut session.writes, row, Some(&session.image)).unwrap();
        drop(view);
        session.next();
        expected.insert(row, value);
    }
    let row = RowId::new(0, 0);
    let view = session.worker.snapshot();
    fixture.store.put(&session.worker, &view, &mut session.writes, row, None).unwrap();
    drop(view);
    expected.remove(&row);
    session.commit().unwrap();
    let found: HashMap<RowId, i64> = session.scan().into_iter().map(|(row, (_, value))| (row, value)).collect();
    assert_eq!(found, expected);
    // New rows go elsewhere.
    session.begin(Isolation::ReadCommitted);
    let new = session.insert(1, 1).unwrap();
    assert!(!expected.contains_key(&new) && new.range() == 3);
    session.abort();
    drop(session);
    fixture.check_empty();
}
