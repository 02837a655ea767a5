//! What one store's transactions and merges wrote, applied to another one under readers.

use super::*;
use crate::rows::patch::{self, Patch};
use crate::schema::{IndexColumn, IndexDef};
use crate::{IndexKey, TableDef, TableIndex};
use std::ops::Bound;
use std::sync::atomic::AtomicUsize;
use tidepool_base::TableId;
use tidepool_index::key::KeyValue;
use tidepool_index::{Cursor, Direction};

/// What a log would have of one row, or of a range.
#[derive(Clone, Debug)]
pub(super) enum Entry {
    Put(RowId, Vec<u8>),
    Patch { row: RowId, base: CommitTs, checksum: u32, steps: Vec<u8> },
    Delete(RowId),
    Load(u64, Arc<RowGroup>),
    Main(u64, NewMain),
}

#[derive(Debug)]
pub(super) struct Record {
    pub ts: CommitTs,
    pub entries: Vec<Entry>,
}

/// A commit whose record goes to `log`.
pub(super) struct Logging<'a> {
    pub writes: &'a mut WriteSet,
    pub loaded: Vec<(u64, Arc<RowGroup>)>,
    pub main: Option<(u64, NewMain)>,
    pub log: &'a Mutex<Vec<Record>>,
}

impl Commit for Logging<'_> {
    fn reserve(&mut self) -> Result<()> {
        Ok(())
    }

    fn append(&mut self, ts: CommitTs) {
        let entry = |(_, row, change): (&Arc<RowStore>, RowId, Change<'_>)| match change {
            Change::Put { image, replaced } => {
                let mut steps = Vec::new();
                match replaced {
                    Some(before) if patch::make(before.image, image, image.len(), &mut steps) => {
                        Entry::Patch { row, base: before.ts, checksum: patch::checksum(image), steps }
                    }
                    _ => Entry::Put(row, image.to_vec()),
                }
            }
            Change::Deleted => Entry::Delete(row),
            Change::Loaded => {
                let (number, group) = self.loaded.iter().find(|(number, _)| *number == row.range()).unwrap();
                Entry::Load(*number, group.clone())
            }
        };
        let mut entries: Vec<Entry> = self.writes.changes().map(entry).collect();
        entries.extend(self.main.take().map(|(number, main)| Entry::Main(number, main)));
        self.log.lock().unwrap().push(Record { ts, entries });
    }

    fn stamp(&mut self, ts: CommitTs, worker: &Worker) {
        self.writes.stamp(ts, worker);
    }
}

pub(super) fn commit(session: &mut Session, loaded: Vec<(u64, Arc<RowGroup>)>, log: &Mutex<Vec<Record>>) -> CommitTs {
    let writes = &mut session.writes;
    session.worker.commit(&mut Logging { writes, loaded, main: None, log }).unwrap().unwrap()
}

/// Merges a range, as a transaction of its own.
pub(super) fn merge_logged(fixture: &Fixture, worker: &Worker, number: u64, log: &Mutex<Vec<Record>>) -> Merged {
    let mut tell = |main: &NewMain| {
        let mut teller = fixture.all.worker()?;
        teller.begin(Isolation::ReadCommitted)?;
        teller.tag_to_write();
        let (mut writes, main) = (WriteSet::new(), Some((number, main.clone())));
        teller.commit(&mut Logging { writes: &mut writes, loaded: Vec::new(), main, log })?;
        Ok(())
    };
    fixture.store.merge_range_telling(worker, number, &mut |batch| fixture.encode(batch), &mut tell).unwrap()
}

pub(super) fn apply_entry(
    applier: &mut Applier,
    to: &Applied,
    worker: &Worker,
    view: &View,
    ts: CommitTs,
    entry: &Entry,
) -> Result<()> {
    match entry {
        Entry::Put(row, image) => applier.apply(to, worker, view, *row, RowChange::Put(image), ts),
        Entry::Patch { row, base, checksum, steps } => {
            let patch = Patch { base: *base, checksum: *checksum, steps };
            applier.apply(to, worker, view, *row, RowChange::Patch(patch), ts)
        }
        Entry::Delete(row) => applier.apply(to, worker, view, *row, RowChange::Delete, ts),
        Entry::Load(number, group) => applier.apply_load(to, worker, view, *number, group.clone(), ts),
        Entry::Main(number, main) => to.store().adopt_main(worker, *number, main.clone()).map(drop),
    }
}

fn range_of(entry: &Entry) -> u64 {
    match entry {
        Entry::Put(row, _) | Entry::Patch { row, .. } | Entry::Delete(row) => row.range(),
        Entry::Load(number, _) | Entry::Main(number, _) => *number,
    }
}

type Contents = BTreeMap<RowId, (i64, i64)>;

/// A random history of transactions, loads and merges: its log, and what there was after each of its commits.
fn history(seed: u64, steps: usize) -> (Vec<Record>, Vec<(CommitTs, Contents)>) {
    let fixture = Fixture::new();
    let log = Mutex::default();
    let mut next = noise(seed);
    let mut session = fixture.session();
    let merger = fixture.all.worker().unwrap();
    let (mut rows, mut contents) = (Contents::new(), vec![(CommitTs(0), Contents::new())]);
    let mut held = Vec::new();
    // Ids are given anew once a row is gone, as keys are.
    let mut free: Vec<i64> = (0..400).collect();
    for _ in 0..steps {
        session.begin(Isolation::RepeatableRead);
        let mut loaded = Vec::new();
        let before = (rows.clone(), free.clone());
        for _ in 0..=next() % 6 {
            let value = next() as i64 % 1000;
            let some = rows.keys().nth(next() as usize % rows.len().max(1)).copied();
            match (next() % 16, some) {
                (0..=4, _) if !free.is_empty() => {
                    let id = free.swap_remove(next() as usize % free.len());
                    rows.insert(session.insert(id, value).unwrap(), (id, value));
                }
                (5..=6, Some(row)) => {
                    assert_eq!(session.delete(row).unwrap(), Outcome::Written);
                    free.push(rows.remove(&row).unwrap().0);
                }
                (7, _) if fixture.store.ranges() < 12 && free.len() > 20 => {
                    let ids: Vec<i64> = free.drain(..10).collect();
                    let of = |id: &i64| (*id, value, note_of(value));
                    let all: Vec<(i64, i64, String)> = ids.iter().map(of).collect();
                    let all: Vec<(i64, i64, &str)> =
                        all.iter().map(|(id, value, note)| (*id, *value, &**note)).collect();
                    let group = Arc::new(fixture.encode(&batch(&all)).unwrap());
                    let view = session.worker.snapshot();
                    let number =
                        session.store.load(&session.worker, &view, &mut session.writes, group.clone()).unwrap();
                    drop(view);
                    rows.extend(ids.iter().enumerate().map(|(at, id)| (RowId::new(number, at), (*id, value))));
                    loaded.push((number, group));
                }
                (_, Some(row)) => {
                    let id = rows[&row].0;
                    assert_eq!(session.update(row, id, value).unwrap(), Outcome::Written);
                    rows.insert(row, (id, value));
                }
                _ => {}
            }
            session.next();
        }
        if session.writes.is_empty() || next().is_multiple_of(12) {
            session.abort();
            (rows, free) = before;
        } else {
            contents.push((commit(&mut session, loaded, &log), rows.clone()));
        }
        match next() % 24 {
            0..=3 => {
                for number in 0..fixture.store.ranges() {
                    let _ = merge_logged(&fixture, &merger, number, &log);
                }
            }
            4..=7 => {
                for number in 0..fixture.store.ranges() {
                    fixture.store.finish_merge(&merger, number);
                }
                merger.collect();
                session.worker.collect();
            }
            8 if fixture.store.ranges() < 8 => fixture.store.seal(),
            9 => held.push(merger.hold_now()),
            10 => held.clear(),
            _ => {}
        }
    }
    // So that in the end all of it is in main.
    held.clear();
    for _ in 0..2 {
        for number in 0..fixture.store.ranges() {
            assert!((0..10).any(|_| fixture.store.finish_merge(&merger, number)));
            let _ = merge_logged(&fixture, &merger, number, &log);
        }
    }
    assert_eq!(scan(&fixture.store, &merger.snapshot()), rows);
    drop((session, merger));
    let mut log = std::mem::take(&mut *log.lock().unwrap());
    log.sort_by_key(|record| record.ts);
    fixture.check_empty();
    (log, contents)
}

struct Follower {
    fixture: Fixture,
    indexes: Vec<Arc<TableIndex>>,
    table: crate::Table,
}

impl Follower {
    fn new() -> Follower {
        let fixture = Fixture::following();
        let columns = [("id", SqlType::BigInt), ("value", SqlType::BigInt), ("note", SqlType::Text)];
        let mut def = TableDef::clone(&table(&columns));
        let index = |id: u32, number: u16, unique: bool| IndexDef {
            id: TableId(id),
            name: format!("i{id}"),
            columns: vec![IndexColumn { number, descending: false, nulls_first: false }],
            unique,
            nulls_not_distinct: false,
            constraint: None,
            tablespace: None,
            partition_of: None,
            building: false,
        };
        def.number_columns();
        def.indexes = vec![index(1, 1, true), index(2, 2, false), index(3, 3, false)];
        let made: Vec<TableIndex> = (def.indexes.iter())
            .map(|index| {
                TableIndex::create(&def, index, fixture.near.clone(), &fixture.all, Some(CommitTs(0))).unwrap()
            })
            .collect();
        let table = crate::Table::new(Arc::new(def), crate::testing::placement("near"), fixture.store.clone());
        let table = table.with_indexes(made);
        Follower { fixture, indexes: table.indexes().to_vec(), table }
    }

    fn applied(&self) -> Applied {
        Applied::new(&self.fixture.store, &self.indexes, CommitTs(0))
    }

    /// What a view sees by each way to the rows.
    fn check(&self, view: &View, contents: &[(CommitTs, Contents)]) {
        let at = contents.partition_point(|(ts, _)| *ts <= view.ts());
        let expected = &contents[at - 1].1;
        assert_eq!(&scan(&self.fixture.store, view), expected, "as of {:?}", view.ts());
        let read = |row: RowId| self.fixture.store.read(view, row).map(|found| row_of(&self.fixture.store, found));
        for (row, (id, value)) in expected {
            assert_eq!(read(*row), Some((*id, *value)));
            let of_id = self.indexes[0].candidates(view, &[KeyValue::BigInt(*id)]).unwrap();
            let with_id = of_id.iter().filter(|row| read(**row).is_some_and(|found| found.0 == *id));
            assert_eq!(with_id.collect::<Vec<_>>(), [row]);
            let of_value = self.indexes[1].candidates(view, &[KeyValue::BigInt(*value)]).unwrap();
            assert!(of_value.contains(row), "{row} is not found by value {value} as of {:?}", view.ts());
            let note = KeyValue::Text(note_of(*value).into());
            assert!(self.indexes[2].candidates(view, &[note]).unwrap().contains(row));
        }
    }

    /// Entries that there are, and those that the rows which a view sees have.
    fn check_entries(&self, view: &View) {
        for index in &self.indexes {
            let mut cursor = Cursor::new((Bound::Unbounded, Bound::Unbounded), Direction::Forward);
            let mut found = Vec::new();
            while let Some(row) = cursor.next_row(index.tree(), view) {
                found.push(row);
            }
            found.sort_unstable();
            let rows: Vec<RowId> = scan(&self.fixture.store, view).into_keys().collect();
            assert_eq!(found, rows, "entries of what is gone, or none of what is there");
        }
    }

    fn settle(&self, worker: &Worker) {
        for number in 0..self.fixture.store.ranges() {
            self.fixture.store.finish_merge(worker, number);
        }
        worker.collect();
    }
}

/// Applies a log in batches on two threads, while others read at snapshots that they keep for a while.
fn run(seed: u64, steps: usize, readers: usize) {
    let (log, contents) = history(seed, steps);
    let follower = Follower::new();
    let done = AtomicBool::new(false);
    let looks = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (follower, contents, done, looks) = (&follower, &contents, &done, &looks);
        for reader in 0..readers {
            scope.spawn(move || {
                let worker = follower.fixture.all.worker().unwrap();
                let mut next = noise(seed ^ reader as u64 ^ 0x77);
                let mut held = Vec::new();
                while !done.load(Ordering::Acquire) {
                    follower.check(&worker.snapshot(), contents);
                    held.push(worker.hold());
                    if held.len() > 3 {
                        let old = held.swap_remove(next() as usize % held.len());
                        follower.check(&old, contents);
                    }
                    if next().is_multiple_of(16) {
                        held.clear();
                    }
                    looks.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut next = noise(seed ^ 0x99);
        let mut workers = [follower.fixture.all.worker().unwrap(), follower.fixture.all.worker().unwrap()];
        let mut appliers = [Applier::default(), Applier::default()];
        let to = follower.applied();
        let mut rest = &log[..];
        while !rest.is_empty() {
            let count = (1 + next() as usize % 40).min(rest.len());
            let (batch, others) = rest.split_at(count);
            rest = others;
            std::thread::scope(|scope| {
                for (shard, (worker, applier)) in workers.iter_mut().zip(&mut appliers).enumerate() {
                    let to = &to;
                    scope.spawn(move || {
                        let view = worker.snapshot_now();
                        let entries =
                            batch.iter().flat_map(|record| record.entries.iter().map(|entry| (record.ts, entry)));
                        for (ts, entry) in entries.filter(|(_, entry)| range_of(entry) % 2 == shard as u64) {
                            apply_entry(applier, to, worker, &view, ts, entry).unwrap();
                        }
                        drop(view);
                        worker.collect();
                    });
                }
            });
            follower.fixture.all.follow(batch[count - 1].ts);
            if next().is_multiple_of(4) {
                follower.settle(&workers[0]);
            }
            // So that each sees something of it.
            let seen = looks.load(Ordering::Relaxed);
            while next().is_multiple_of(8) && looks.load(Ordering::Relaxed) == seen && readers > 0 {
                std::thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
    });
    let last = contents.last().unwrap();
    let mut session = follower.fixture.session();
    // What adopts and takes out comes one after the other, each when the horizon has moved on.
    for later in 1..5 {
        follower.fixture.all.follow(CommitTs(log.last().unwrap().ts.0 + later));
        follower.settle(&session.worker);
    }
    follower.check(&session.worker.snapshot(), &contents);
    follower.check_entries(&session.worker.snapshot());
    let versions: usize = (0..follower.fixture.store.ranges()).map(|number| follower.headed(&session, number)).sum();
    assert_eq!(versions, 0, "all is in main, and nothing is left in versions");
    // It goes on by itself.
    follower.fixture.all.promote(last.0);
    follower.fixture.store.end_applying(&session.worker.snapshot());
    session.begin(Isolation::ReadCommitted);
    let row = session.insert(5000, 7).unwrap();
    assert!(!last.1.contains_key(&row));
    if let Some((old, (id, _))) = last.1.first_key_value() {
        assert_eq!(session.update(*old, *id, 11).unwrap(), Outcome::Written);
    }
    session.commit().unwrap();
    let expected = last.1.len() + 1;
    assert_eq!(session.scan().len(), expected);
    for number in 0..follower.fixture.store.ranges() {
        let _ = follower.fixture.merge(&session.worker, number).unwrap();
        follower.fixture.store.finish_merge(&session.worker, number);
    }
    assert_eq!(session.scan().len(), expected);
    drop(session);
    let Follower { fixture, indexes, table } = follower;
    drop((indexes, table));
    fixture.check_empty();
}

impl Follower {
    fn headed(&self, session: &Session, number: u64) -> usize {
        self.fixture.store.range_usage(&session.worker.snapshot(), number).headed
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn what_is_applied_is_what_was_logged_as_of_each_snapshot() {
    for seed in 0..4 {
        run(seed, 600, 2);
    }
}

/// By seed, for as long as TIDEPOOL_STRESS_SECONDS says.
#[test]
#[cfg_attr(miri, ignore = "takes hours there")]
fn apply_stress() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
    };
    let seconds = std::time::Duration::from_secs(number("TIDEPOOL_STRESS_SECONDS", 0));
    let (mut seed, start) = (number("TIDEPOOL_STRESS_SEED", 1), std::time::Instant::now());
    while start.elapsed() < seconds {
        println!("seed {seed}");
        run(seed, 800, 2);
        seed += 1;
    }
}

fn image(id: i64, value: i64) -> Vec<u8> {
    let mut image = Vec::new();
    let rows = batch(&[(id, value, &note_of(value))]);
    layout().rows(&rows).unwrap().image(0, &mut image).unwrap();
    image
}

fn put(fixture: &Fixture, worker: &Worker, row: RowId, value: Option<i64>, ts: u64) {
    let to = Applied::new(&fixture.store, &[], CommitTs(0));
    let image = value.map(|value| image(7, value));
    let change = image.as_deref().map_or(RowChange::Delete, RowChange::Put);
    Applier::default().apply(&to, worker, &worker.snapshot_now(), row, change, CommitTs(ts)).unwrap();
}

/// A row that was deleted, and whose deletion went, before the main came that still has it.
#[test]
fn a_main_does_not_bring_back_what_was_deleted_after_it() {
    let fixture = Fixture::tiny_following();
    let worker = fixture.all.worker().unwrap();
    let (row, other) = (RowId::new(0, 0), RowId::new(0, 1));
    put(&fixture, &worker, row, Some(1), 10);
    put(&fixture, &worker, other, Some(2), 10);
    fixture.all.follow(CommitTs(20));
    put(&fixture, &worker, row, None, 30);
    fixture.all.follow(CommitTs(40));
    worker.collect();
    fixture.all.follow(CommitTs(41));
    worker.collect();
    let rows = [(7, 1, note_of(1)), (7, 2, note_of(2))];
    let group = fixture.encode(&batch(&rows.each_ref().map(|(id, value, note)| (*id, *value, &**note)))).unwrap();
    let main = NewMain { group: Some(Arc::new(group)), dead: Vec::new(), horizon: CommitTs(20) };
    assert!(!fixture.store.adopt_main(&worker, 0, main).unwrap(), "heads wait for the horizon");
    let all = |worker: &Worker| scan(&fixture.store, &worker.snapshot());
    assert_eq!(all(&worker), BTreeMap::from([(other, (7, 2))]));
    fixture.all.follow(CommitTs(50));
    assert!(fixture.store.finish_merge(&worker, 0));
    assert_eq!(all(&worker), BTreeMap::from([(other, (7, 2))]));
    // A change of what went into main is a change of what is there.
    let (old, new) = (image(7, 2), image(7, 3));
    let mut steps = Vec::new();
    assert!(patch::make(&old, &new, 1000, &mut steps));
    let patch = Patch { base: CommitTs(10), checksum: patch::checksum(&new), steps: &steps };
    let to = Applied::new(&fixture.store, &[], CommitTs(0));
    let view = worker.snapshot_now();
    Applier::default().apply(&to, &worker, &view, other, RowChange::Patch(patch), CommitTs(60)).unwrap();
    let of_others = Applier::default().apply(&to, &worker, &view, other, RowChange::Patch(patch), CommitTs(70));
    assert_eq!(of_others.unwrap_err().code(), SqlState::DATA_CORRUPTED);
    drop(view);
    fixture.all.follow(CommitTs(80));
    assert_eq!(all(&worker), BTreeMap::from([(other, (7, 3))]));
    drop((worker, to));
    fixture.check_empty();
}

/// A statement that looks at what was before keeps it, and the new main waits.
#[test]
fn a_main_waits_for_snapshots_from_before_what_it_holds() {
    let fixture = Fixture::tiny_following();
    let worker = fixture.all.worker().unwrap();
    let row = RowId::new(0, 0);
    put(&fixture, &worker, row, Some(1), 10);
    fixture.all.follow(CommitTs(10));
    let old = worker.hold();
    put(&fixture, &worker, row, Some(2), 20);
    fixture.all.follow(CommitTs(30));
    let group = fixture.encode(&batch(&[(7, 2, &note_of(2))])).unwrap();
    let main = NewMain { group: Some(Arc::new(group)), dead: Vec::new(), horizon: CommitTs(25) };
    assert!(!fixture.store.adopt_main(&worker, 0, main).unwrap());
    let value = |view: &View| scan(&fixture.store, view)[&row].1;
    assert_eq!(fixture.store.range_usage(&old, 0).main, 0);
    assert_eq!((value(&old), value(&worker.snapshot())), (1, 2));
    drop(old);
    assert!(!fixture.store.finish_merge(&worker, 0));
    assert_eq!(fixture.store.range_usage(&worker.snapshot(), 0).main, 1);
    assert_eq!(value(&worker.snapshot()), 2);
    let between = worker.hold();
    fixture.all.follow(CommitTs(40));
    assert!(!fixture.store.finish_merge(&worker, 0), "somebody may look at the main before");
    drop(between);
    assert!(fixture.store.finish_merge(&worker, 0));
    assert_eq!(fixture.store.range_usage(&worker.snapshot(), 0).headed, 0);
    assert_eq!(value(&worker.snapshot()), 2);
    drop(worker);
    fixture.check_empty();
}

/// Short enough for Miri: one applies, one reads, mains are adopted, and versions freed.
#[test]
fn readers_see_whole_batches() {
    let fixture = Fixture::tiny_following();
    let rounds = if cfg!(miri) { 24 } else { 400 };
    let rows = [RowId::new(0, 0), RowId::new(0, 1), RowId::new(0, 70)];
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (fixture, done) = (&fixture, &done);
        scope.spawn(move || {
            let worker = fixture.all.worker().unwrap();
            while !done.load(Ordering::Acquire) {
                let view = worker.snapshot();
                let found = scan(&fixture.store, &view);
                let sum: i64 = found.values().map(|(_, value)| value).sum();
                assert!(found.is_empty() || sum == 60, "{found:?} as of {:?}", view.ts());
            }
        });
        let worker = fixture.all.worker().unwrap();
        let mut next = noise(5);
        for round in 1..=rounds {
            let ts = round * 10;
            let first = next() as i64 % 60;
            put(fixture, &worker, rows[0], Some(first), ts);
            match round % 2 {
                0 => {
                    put(fixture, &worker, rows[1], Some(60 - first), ts);
                    put(fixture, &worker, rows[2], None, ts);
                }
                _ => {
                    put(fixture, &worker, rows[1], None, ts);
                    put(fixture, &worker, rows[2], Some(60 - first), ts);
                }
            }
            fixture.all.follow(CommitTs(ts));
            if round % 6 == 0 {
                let rest = note_of(60 - first);
                let group = fixture.encode(&batch(&[(7, first, &note_of(first)), (7, 60 - first, &rest)])).unwrap();
                let main = NewMain { group: Some(Arc::new(group)), dead: Vec::new(), horizon: CommitTs(ts) };
                fixture.store.adopt_main(&worker, 0, main).unwrap();
            }
            if round % 3 == 0 {
                fixture.all.follow(CommitTs(ts + 1));
                fixture.store.finish_merge(&worker, 0);
                worker.collect();
            }
        }
        done.store(true, Ordering::Release);
    });
    fixture.check_empty();
}

#[test]
fn a_range_that_is_named_before_those_before_it_is_nobodys_main() {
    let fixture = Fixture::tiny_following();
    let worker = fixture.all.worker().unwrap();
    let to = Applied::new(&fixture.store, &[], CommitTs(0));
    let group = |value: i64| Arc::new(fixture.encode(&batch(&[(7, value, &note_of(value))])).unwrap());
    let load = |number: u64, value: i64, ts: u64| {
        let view = worker.snapshot_now();
        Applier::default().apply_load(&to, &worker, &view, number, group(value), CommitTs(ts))
    };
    load(2, 2, 20).unwrap();
    let before = worker.hold();
    load(1, 1, 30).unwrap();
    assert_eq!(load(1, 1, 40).unwrap_err().code(), SqlState::DATA_CORRUPTED);
    assert!(scan(&fixture.store, &before).is_empty());
    fixture.all.follow(CommitTs(25));
    assert_eq!(scan(&fixture.store, &worker.snapshot()), BTreeMap::from([(RowId::new(2, 0), (7, 2))]));
    fixture.all.follow(CommitTs(35));
    assert_eq!(scan(&fixture.store, &worker.snapshot()).len(), 2);
    assert!(scan(&fixture.store, &before).is_empty());
    drop(before);
    put(&fixture, &worker, RowId::new(0, 5), Some(9), 50);
    fixture.all.follow(CommitTs(50));
    fixture.all.promote(CommitTs(50));
    fixture.store.end_applying(&worker.snapshot());
    assert!(matches!(fixture.merge(&worker, 0).unwrap(), Merged::Replaced { .. }));
    assert_eq!(scan(&fixture.store, &worker.snapshot()).len(), 3);
    drop((worker, to));
    fixture.check_empty();
}

/// The key of an image that is put over another one is entered only where it changes.
#[test]
#[cfg_attr(miri, ignore = "maps memory")]
fn entries_of_keys_that_stay_are_left_alone() {
    let follower = Follower::new();
    let worker = follower.fixture.all.worker().unwrap();
    let to = follower.applied();
    let mut applier = Applier::default();
    let row = RowId::new(0, 0);
    for (value, ts) in [(1, 10), (2, 20), (2, 30), (1, 40)] {
        let view = worker.snapshot_now();
        applier.apply(&to, &worker, &view, row, RowChange::Put(&image(7, value)), CommitTs(ts)).unwrap();
        drop(view);
        follower.fixture.all.follow(CommitTs(ts));
        worker.collect();
    }
    follower.fixture.all.follow(CommitTs(50));
    worker.collect();
    follower.check_entries(&worker.snapshot());
    let mut key = IndexKey::default();
    let view = worker.snapshot();
    let found = follower.fixture.store.read(&view, row).unwrap();
    follower.indexes[1].key_of(&follower.fixture.store, found, &mut key).unwrap();
    assert!(follower.indexes[1].tree().has(&view, key.bytes(), row));
}
