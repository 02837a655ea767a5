//! Interleavings of the row store as it is, over ranges of 64 rows: versions and mains from their publication to their freeing.
//!
//! Versions and mains have a witness ([`super::super::sync::Witness`]): loom fails where one is looked at without being known to be written,
//! or freed while somebody may be looking.
//!
//! Each of these, taken out, makes a scenario fail: the acquire in `Head::load` and in `Range::main`, the fence between drawing a snapshot and
//! looking (`Worker::draw`), the timestamp that a version is retired at (`WriteSet::stamp`), the wait for the horizon in
//! `RowStore::take_out`, `upto` in `RangeView::seen`; and so
//! does taking a mark off after its head is null (`Range::take_out`).

use super::*;
use loom::thread;

/// Looks at what comes of a scenario under every interleaving of few changes of thread that nobody has to wait for.
fn explore(changes: usize, scenario: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(changes);
    model.max_branches = 100_000;
    let runs = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&runs);
    model.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        scenario();
    });
    println!("{} interleavings", runs.load(Ordering::Relaxed));
}

/// With a committed row of value 1.
fn one_row() -> (Fixture, Session, RowId) {
    let fixture = Fixture::tiny();
    let mut writer = fixture.session();
    writer.begin(Isolation::ReadCommitted);
    let row = writer.insert(7, 1).unwrap();
    writer.commit().unwrap();
    (fixture, writer, row)
}

fn update(writer: &mut Session, row: RowId, value: i64) -> CommitTs {
    writer.begin(Isolation::ReadCommitted);
    assert_eq!(writer.update(row, 7, value).unwrap(), Outcome::Written);
    writer.commit().unwrap().unwrap()
}

/// The value of the only row, by its id and twice by a look at its range as scans do it, which must all agree; and the
/// snapshot's timestamp.
fn look(reader: &Session, row: RowId) -> (CommitTs, Option<i64>) {
    let view = reader.worker.snapshot();
    let range = reader.store.range(&view, 0).unwrap();
    let by_range = || {
        // First what main shows, then what versions do, as scans come by.
        let mut shown = [u64::MAX];
        range.and_shown(0, &mut shown);
        let shown = shown[0];
        let mut versions = Vec::new();
        let _ = range.window(0, &mut versions);
        let in_main = (shown != 0).then(|| range.group().unwrap()).map(|group| {
            assert_eq!(shown, 1 << row.position(), "other rows than there are");
            row_of(&reader.store, RowRef::Main { group, position: row.position() }).1
        });
        let mut images = versions.iter().map(|(_, image)| row_of(&reader.store, RowRef::Version(image)).1);
        let in_delta = images.next();
        assert!(images.next().is_none() && !(in_main.is_some() && in_delta.is_some()), "the row comes twice");
        in_main.or(in_delta)
    };
    let first = by_range();
    let by_id = reader.store.read(&view, row).map(|found| row_of(&reader.store, found).1);
    assert_eq!(first, by_id, "a scan and a look-up differ");
    assert_eq!(first, by_range(), "two scans differ");
    (view.ts(), first)
}

/// Replaces main, and takes the versions that it has out, unless a snapshot keeps the horizon back.
fn merge(fixture: &Fixture, merger: &Worker) -> Merged {
    fixture.store.seal();
    let merged = fixture.merge(merger, 0).unwrap();
    // The clock goes on whenever it is asked.
    let _ = (0..3).any(|_| fixture.store.finish_merge(merger, 0));
    merged
}

/// As `merge`, to its end, when nobody has a snapshot.
fn merge_alone(fixture: &Fixture, merger: &Worker) {
    assert!((0..3).any(|_| matches!(merge(fixture, merger), Merged::Replaced { .. })));
    finish(fixture, merger);
}

/// When nobody has a snapshot.
fn finish(fixture: &Fixture, merger: &Worker) {
    assert!((0..3).any(|_| fixture.store.finish_merge(merger, 0)));
    merger.collect();
}

#[test]
fn a_version_is_found_as_of_its_commit_and_freed_when_nobody_looks() {
    explore(2, || {
        let (fixture, mut writer, row) = one_row();
        let reader = fixture.session();
        let other = thread::spawn(move || {
            let found = look(&reader, row);
            (found, reader)
        });
        let c = update(&mut writer, row, 2);
        writer.worker.collect();
        let ((s, value), reader) = other.join().unwrap();
        assert_eq!(value, Some(if c <= s { 2 } else { 1 }));
        writer.worker.collect();
        assert_eq!(look(&reader, row).1, Some(2));
    });
}

#[test]
fn a_new_row_is_marked_by_the_time_that_somebody_must_find_it() {
    explore(2, || {
        let fixture = Fixture::tiny();
        let (mut writer, reader) = (fixture.session(), fixture.session());
        // The range is there, its row not yet.
        writer.begin(Isolation::ReadCommitted);
        let first = writer.insert(6, 0).unwrap();
        writer.abort();
        let row = RowId(first.0 + 1);
        let other = thread::spawn(move || look(&reader, row));
        writer.begin(Isolation::ReadCommitted);
        assert_eq!(writer.insert(7, 1).unwrap(), row);
        let c = writer.commit().unwrap().unwrap();
        let (s, value) = other.join().unwrap();
        assert_eq!(value, (c <= s).then_some(1));
    });
}

#[test]
fn what_is_rolled_back_was_seen_by_nobody() {
    explore(2, || {
        let (fixture, mut writer, row) = one_row();
        let reader = fixture.session();
        let other = thread::spawn(move || look(&reader, row));
        writer.begin(Isolation::ReadCommitted);
        assert_eq!(writer.update(row, 7, 2).unwrap(), Outcome::Written);
        writer.abort();
        writer.worker.collect();
        assert_eq!(other.join().unwrap().1, Some(1));
    });
}

#[test]
fn a_deleted_row_is_gone_for_those_after_it() {
    explore(2, || {
        let (fixture, mut writer, row) = one_row();
        let reader = fixture.session();
        let other = thread::spawn(move || look(&reader, row));
        writer.begin(Isolation::ReadCommitted);
        assert_eq!(writer.delete(row).unwrap(), Outcome::Written);
        let c = writer.commit().unwrap().unwrap();
        // The version, then what says that it is gone, then that.
        writer.worker.collect();
        writer.worker.collect();
        let (s, value) = other.join().unwrap();
        assert_eq!(value, (c > s).then_some(1));
    });
}

/// Both change the row as it is when they come: one of them waits, or finds it newer than its view.
#[test]
fn of_two_writers_one_has_the_row() {
    explore(2, || {
        let (fixture, mut one, row) = one_row();
        let mut two = fixture.session();
        let add = move |writer: &mut Session| {
            writer.begin(Isolation::RepeatableRead);
            let value = writer.read(row).unwrap().1;
            match writer.update(row, 7, value + 1).unwrap() {
                Outcome::Written => drop(writer.commit().unwrap()),
                Outcome::Newer { .. } | Outcome::Conflict(_) => {
                    writer.abort();
                    return 0;
                }
                other => panic!("{other:?}"),
            }
            1
        };
        let other = thread::spawn(move || add(&mut two));
        let added = add(&mut one) + other.join().unwrap();
        assert!(added > 0, "one of two that only meet each other comes through");
        assert_eq!(look(&one, row).1, Some(1 + added));
    });
}

#[test]
fn a_reader_finds_a_row_once_while_it_goes_into_main() {
    explore(2, || {
        let (fixture, writer, row) = one_row();
        let reader = fixture.session();
        let other = thread::spawn(move || look(&reader, row).1);
        merge(&fixture, &writer.worker);
        writer.worker.collect();
        assert_eq!(other.join().unwrap(), Some(1));
        finish(&fixture, &writer.worker);
        assert_eq!(look(&writer, row).1, Some(1));
    });
}

/// A second main takes the place of the first one, which is freed, as are the versions that it had.
#[test]
fn a_reader_finds_the_same_by_the_main_before_and_the_one_after() {
    explore(2, || {
        let (fixture, mut writer, row) = one_row();
        merge_alone(&fixture, &writer.worker);
        update(&mut writer, row, 2);
        let reader = fixture.session();
        let other = thread::spawn(move || look(&reader, row).1);
        merge(&fixture, &writer.worker);
        writer.worker.collect();
        assert_eq!(other.join().unwrap(), Some(2));
        finish(&fixture, &writer.worker);
        assert_eq!(look(&writer, row).1, Some(2));
    });
}

#[test]
fn what_is_written_during_a_merge_stays() {
    explore(2, || {
        let (fixture, reader, row) = one_row();
        let mut writer = fixture.session();
        let other = thread::spawn(move || {
            let c = update(&mut writer, row, 2);
            (c, writer)
        });
        merge(&fixture, &reader.worker);
        let (s, value) = look(&reader, row);
        let (c, _) = other.join().unwrap();
        assert_eq!(value, Some(if c <= s { 2 } else { 1 }));
        finish(&fixture, &reader.worker);
        assert_eq!(look(&reader, row).1, Some(2));
        merge(&fixture, &reader.worker);
        finish(&fixture, &reader.worker);
        assert_eq!(look(&reader, row).1, Some(2));
    });
}

#[test]
fn a_reader_a_writer_and_a_merge() {
    explore(1, || {
        let (fixture, merger, row) = one_row();
        let (mut writer, reader) = (fixture.session(), fixture.session());
        let reading = thread::spawn(move || look(&reader, row));
        let writing = thread::spawn(move || update(&mut writer, row, 2));
        merge(&fixture, &merger.worker);
        merger.worker.collect();
        let ((s, value), c) = (reading.join().unwrap(), writing.join().unwrap());
        assert_eq!(value, Some(if c <= s { 2 } else { 1 }));
        assert_eq!(look(&merger, row).1, Some(2));
    });
}

/// One who follows, with a row of value 1 as of 10, applied; and who applies.
fn one_applied() -> (Fixture, Session, RowId) {
    let fixture = Fixture::tiny_following();
    let applier = fixture.session();
    let row = RowId::new(0, 0);
    apply(&applier, row, Some(1), 10);
    fixture.all.follow(CommitTs(10));
    (fixture, applier, row)
}

fn apply(session: &Session, row: RowId, value: Option<i64>, ts: u64) {
    let to = Applied::new(&session.store, &[], CommitTs(0));
    let mut image = Vec::new();
    if let Some(value) = value {
        let rows = batch(&[(7, value, &note_of(value))]);
        layout().rows(&rows).unwrap().image(0, &mut image).unwrap();
    }
    let change = if value.is_some() { RowChange::Put(&image) } else { RowChange::Delete };
    let view = session.worker.snapshot_now();
    Applier::default().apply(&to, &session.worker, &view, row, change, CommitTs(ts)).unwrap();
}

fn main_of(fixture: &Fixture, value: i64, horizon: u64) -> NewMain {
    let group = fixture.encode(&batch(&[(7, value, &note_of(value))])).unwrap();
    NewMain { group: Some(Arc::new(group)), dead: Vec::new(), horizon: CommitTs(horizon) }
}

#[test]
fn what_is_applied_is_found_when_it_is_published_and_freed_when_nobody_looks() {
    explore(2, || {
        let (fixture, applier, row) = one_applied();
        let reader = fixture.session();
        let other = thread::spawn(move || (look(&reader, row), look(&reader, row)));
        apply(&applier, row, Some(2), 20);
        fixture.all.follow(CommitTs(20));
        fixture.all.follow(CommitTs(21));
        applier.worker.collect();
        let (first, second) = other.join().unwrap();
        for (s, value) in [first, second] {
            assert_eq!(value, Some(if s >= CommitTs(20) { 2 } else { 1 }));
        }
        fixture.all.promote(CommitTs(0));
    });
}

#[test]
fn a_deletion_that_is_applied_goes_when_everybody_sees_it() {
    explore(2, || {
        let (fixture, applier, row) = one_applied();
        let reader = fixture.session();
        let other = thread::spawn(move || look(&reader, row));
        apply(&applier, row, None, 20);
        fixture.all.follow(CommitTs(20));
        for later in 21..24 {
            fixture.all.follow(CommitTs(later));
            applier.worker.collect();
        }
        let (s, value) = other.join().unwrap();
        assert_eq!(value, (s < CommitTs(20)).then_some(1));
        fixture.all.promote(CommitTs(0));
    });
}

#[test]
fn a_reader_finds_a_row_once_while_a_main_is_adopted() {
    explore(2, || {
        let (fixture, applier, row) = one_applied();
        let reader = fixture.session();
        let other = thread::spawn(move || look(&reader, row).1);
        fixture.store.adopt_main(&applier.worker, 0, main_of(&fixture, 1, 10)).unwrap();
        for later in 11..13 {
            fixture.all.follow(CommitTs(later));
            fixture.store.finish_merge(&applier.worker, 0);
        }
        applier.worker.collect();
        assert_eq!(other.join().unwrap(), Some(1));
        fixture.all.follow(CommitTs(14));
        assert!(fixture.store.finish_merge(&applier.worker, 0));
        assert_eq!(look(&applier, row).1, Some(1));
        fixture.all.promote(CommitTs(0));
    });
}

/// One applies, one adopts what was before, as the background thread does.
#[test]
fn a_row_is_changed_while_the_main_beneath_it_is_adopted() {
    explore(2, || {
        let (fixture, applier, row) = one_applied();
        let adopter = fixture.session();
        fixture.store.adopt_main(&adopter.worker, 0, main_of(&fixture, 1, 10)).unwrap();
        fixture.all.follow(CommitTs(11));
        let store = Arc::clone(&fixture.store);
        let other = thread::spawn(move || {
            store.finish_merge(&adopter.worker, 0);
            let found = look(&adopter, row);
            (found, adopter)
        });
        apply(&applier, row, Some(2), 20);
        fixture.all.follow(CommitTs(20));
        let ((s, value), adopter) = other.join().unwrap();
        assert_eq!(value, Some(if s >= CommitTs(20) { 2 } else { 1 }));
        fixture.all.follow(CommitTs(30));
        assert!(fixture.store.finish_merge(&adopter.worker, 0));
        assert_eq!(look(&applier, row).1, Some(2));
        fixture.all.promote(CommitTs(0));
    });
}

/// A range that was made for a later one's sake comes to have a main that only later snapshots find.
#[test]
fn a_range_is_loaded_under_a_reader() {
    explore(2, || {
        let fixture = Fixture::tiny_following();
        let (applier, reader) = (fixture.session(), fixture.session());
        let to = Applied::new(&fixture.store, &[], CommitTs(0));
        let load = |number: u64, ts: u64| {
            let group = main_of(&fixture, 1, 0).group.unwrap();
            let view = applier.worker.snapshot_now();
            Applier::default().apply_load(&to, &applier.worker, &view, number, group, CommitTs(ts)).unwrap();
        };
        load(1, 5);
        fixture.all.follow(CommitTs(5));
        let row = RowId::new(0, 0);
        let other = thread::spawn(move || look(&reader, row));
        load(0, 20);
        fixture.all.follow(CommitTs(20));
        let (s, value) = other.join().unwrap();
        assert_eq!(value, (s >= CommitTs(20)).then_some(1));
        fixture.all.promote(CommitTs(0));
    });
}
