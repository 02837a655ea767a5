//! One step at a time, each with what must come of it.

use super::*;

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

#[test]
fn heads_lie_beside_versions_where_near_is_full() {
    let (near, delta) = (heap_space(), heap_space());
    let mut others = Vec::new();
    while let Ok(page) = near.allocate(tidepool_device::PAGE_BYTES, Purpose::Heap) {
        others.push(page);
    }
    let fixture = Fixture::over(&near, &delta);
    let mut session = fixture.session();
    let mut insert = |ids: std::ops::Range<i64>| {
        session.begin(Isolation::ReadCommitted);
        ids.for_each(|id| _ = session.insert(id, id % 7).unwrap());
        session.commit().unwrap();
    };
    insert(0..600);
    assert_eq!(near.bytes(Purpose::Delta), 0);
    drop(others);
    insert(600..1800);
    assert!(near.bytes(Purpose::Delta) > 0);
    let expected: BTreeSet<(i64, i64)> = (0..1800).map(|id| (id, id % 7)).collect();
    assert_eq!(session.scan().into_values().collect::<BTreeSet<_>>(), expected);
    drop(session);
    fixture.check_empty();
    assert_eq!(near.bytes(Purpose::Delta), 0);
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

#[test]
fn a_serializable_transaction_is_refused_for_what_it_read_alone() {
    let fixture = if cfg!(miri) { Fixture::tiny() } else { Fixture::new() };
    let (mut one, mut two) = (fixture.session(), fixture.session());
    let merger = fixture.all.worker().unwrap();
    two.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..10).map(|id| two.insert(id, 100).unwrap()).collect();
    two.commit().unwrap();
    let nine = where_id(CompareOp::Eq, 9);
    let mut held = |read: &dyn Fn(&mut Session), change: &dyn Fn(&mut Session)| {
        one.begin(Isolation::Serializable);
        assert_eq!(one.scan().len(), 10);
        read(&mut one);
        // What it writes itself is in nobody's way.
        one.insert(9, 0).unwrap();
        two.begin(Isolation::ReadCommitted);
        change(&mut two);
        two.commit().unwrap();
        let ended = one.commit().map_err(|error| error.code());
        one.abort();
        match ended {
            Ok(_) => true,
            Err(SqlState::SERIALIZATION_FAILURE) => false,
            Err(other) => panic!("{other:?}"),
        }
    };
    let clean = |session: &mut Session| {
        session.begin(Isolation::ReadCommitted);
        let doomed: Vec<RowId> = session.scan().into_keys().filter(|row| !rows.contains(row)).collect();
        doomed.into_iter().for_each(|row| assert_eq!(session.delete(row).unwrap(), Outcome::Written));
        session.commit().unwrap();
    };
    let mut cleaner = fixture.session();
    // Encoding takes minutes under Miri.
    for in_main in if cfg!(miri) { &[false][..] } else { &[false, true] } {
        if *in_main {
            fixture.store.seal();
            for number in 0..fixture.store.ranges() {
                fixture.merge(&merger, number).unwrap();
            }
        }
        let update = |row: RowId, id: i64, value: i64| {
            move |session: &mut Session| {
                assert_eq!(session.update(row, id, value).unwrap(), Outcome::Written);
            }
        };
        let by = |read: ScanRead| {
            move |session: &mut Session| session.writes.read_scan(&session.store.clone(), read.clone())
        };
        let inserted = |id: i64| move |session: &mut Session| assert!(session.insert(id, 1).is_ok());
        let row_three = |session: &mut Session| session.writes.read_row(&session.store.clone(), rows[3]);
        assert!(held(&row_three, &update(rows[4], 4, 1)));
        clean(&mut cleaner);
        assert!(!held(&row_three, &update(rows[3], 3, 1)));
        clean(&mut cleaner);
        // Its image before meets the condition, its image after does, neither does.
        assert!(!held(&by(where_id(CompareOp::Lt, 3)), &update(rows[2], 70, 1)));
        clean(&mut cleaner);
        assert!(!held(&by(where_id(CompareOp::Gt, 60)), &update(rows[2], 80, 1)));
        clean(&mut cleaner);
        assert!(held(&by(where_id(CompareOp::Lt, 2)), &update(rows[2], 2, 1)));
        clean(&mut cleaner);
        assert!(held(&by(nine.clone()), &inserted(8)));
        clean(&mut cleaner);
        assert!(!held(&by(nine.clone()), &inserted(9)));
        clean(&mut cleaner);
        // So much was read that it counts as everything.
        let much = |session: &mut Session| {
            (0..20_000).for_each(|_| session.writes.read_row(&session.store.clone(), rows[3]));
        };
        assert!(!held(&much, &update(rows[4], 4, 2)));
        clean(&mut cleaner);
        // Nobody changed it, but the table is to have other rows.
        assert!(!held(&row_three, &|session| {
            session.insert(7, 7).unwrap();
            session.writes.redefined(&session.store.clone(), &session.worker);
        }));
        assert_ne!(fixture.store.redefined.swap(0, Ordering::AcqRel), 0);
        clean(&mut cleaner);
        // Which comes to nothing if that is undone.
        assert!(held(&row_three, &|session| {
            let savepoint = session.writes.savepoint();
            session.writes.redefined(&session.store.clone(), &session.worker);
            session.writes.undo_to(savepoint, &session.worker);
            session.insert(7, 7).unwrap();
        }));
        clean(&mut cleaner);
    }
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

        fn gone_range(&self, _: &RowStore, _: &View, _: u64, _: &RowGroup) {
            panic!("nobody loads a range here");
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
fn rows_are_put_by_id() {
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

#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn a_store_is_restored_from_rows_in_any_order() {
    for seed in 0..50u64 {
        let fixture = Fixture::new();
        let mut session = fixture.session();
        let mut random = seed * 2 + 1;
        let mut below = |limit: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 33) % limit
        };
        // Range 1 has main, of which row 3 is dead.
        let rows: Vec<(i64, i64, String)> = (0..10).map(|id| (id, 1_000 + id, note_of(1_000 + id))).collect();
        let rows: Vec<(i64, i64, &str)> = rows.iter().map(|(id, value, note)| (*id, *value, note.as_str())).collect();
        let group = Arc::new(fixture.encode(&batch(&rows)).unwrap());
        let mut expected: BTreeMap<RowId, (u64, Option<i64>)> =
            (0..10).filter(|id| *id != 3).map(|id| (RowId::new(1, id), (0, Some(1_000 + id as i64)))).collect();
        let mut events: Vec<(RowId, u64, Option<i64>)> = (0..200)
            .map(|value| {
                let row = RowId::new(below(3), below(12) as usize);
                (row, 1 + below(40), (below(3) > 0).then_some(value))
            })
            .collect();
        // No two changes of a row have one time.
        events.sort_by_key(|(row, ts, _)| (*row, *ts));
        events.dedup_by_key(|(row, ts, _)| (*row, *ts));
        for (row, ts, value) in &events {
            expected.insert(*row, (*ts, *value));
        }
        for place in (1..events.len()).rev() {
            events.swap(place, below(place as u64 + 1) as usize);
        }
        let load = |session: &Session| {
            fixture.store.restore_main(&session.worker, 1, Arc::clone(&group), &[3]).unwrap();
            let again = fixture.store.restore_main(&session.worker, 1, Arc::clone(&group), &[]);
            assert_eq!(again.unwrap_err().code(), SqlState::DATA_CORRUPTED);
        };
        let load_at = below(events.len() as u64) as usize;
        for (place, (row, ts, value)) in events.iter().enumerate() {
            if place == load_at {
                load(&session);
            }
            let image = value.map(|value| {
                session.set(row.0 as i64, value);
                session.image.clone()
            });
            let view = session.worker.snapshot();
            fixture.store.restore_row(&view, *row, image.as_deref(), CommitTs(*ts)).unwrap();
        }
        fixture.store.end_restoring(&session.worker.snapshot());
        session.begin(Isolation::ReadCommitted);
        let found: BTreeMap<RowId, i64> = session.scan().into_iter().map(|(row, (_, value))| (row, value)).collect();
        let expected: BTreeMap<RowId, i64> =
            expected.into_iter().filter_map(|(row, (_, value))| Some((row, value?))).collect();
        assert_eq!(found, expected, "seed {seed}");
        // The last range has free ids behind what was there.
        let new = session.insert(1, 1).unwrap();
        assert_eq!(new, RowId::new(2, 512), "seed {seed}");
        session.abort();
        let view = session.worker.snapshot();
        assert_eq!(
            fixture.store.restore_row(&view, new, Some(b"?"), CommitTs(1)).unwrap_err().code(),
            SqlState::DATA_CORRUPTED
        );
        drop(view);
        drop((session, group));
        fixture.check_empty();
    }
}

/// Does something between the decision to commit and the stamping of versions.
struct Interrupted<'t, F: FnMut()> {
    writes: &'t mut WriteSet,
    meanwhile: F,
}

impl<F: FnMut()> Commit for Interrupted<'_, F> {
    fn reserve(&mut self) -> Result<()> {
        Ok(())
    }

    fn append(&mut self, _: CommitTs) {
        (self.meanwhile)();
    }

    fn stamp(&mut self, ts: CommitTs, worker: &Worker) {
        self.writes.stamp(ts, worker);
    }
}

/// A thread that loses its processor between its decision to commit and the stamping of its versions: others replace them,
/// and what they retire must stay until it is back.
#[test]
fn what_is_committed_and_not_stamped_stays() {
    let fixture = Fixture::tiny();
    let mut setup = fixture.session();
    setup.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..400).map(|id| setup.insert(id, 0).unwrap()).collect();
    setup.commit().unwrap();
    let mut slow = fixture.session();
    // So that both take memory from the same slabs.
    let between: Vec<Session> = (0..63).map(|_| fixture.session()).collect();
    let mut quick = fixture.session();
    slow.begin(Isolation::ReadCommitted);
    assert_eq!(slow.update(rows[0], 0, 1).unwrap(), Outcome::Written);
    let meanwhile = || {
        quick.begin(Isolation::ReadCommitted);
        assert_eq!(quick.read(rows[0]), Some((0, 1)), "it is committed");
        assert_eq!(quick.update(rows[0], 0, 2).unwrap(), Outcome::Written);
        quick.commit().unwrap();
        quick.worker.collect();
        // Takes the memory of what was freed.
        quick.begin(Isolation::ReadCommitted);
        for (id, row) in rows.iter().enumerate().skip(1) {
            assert_eq!(quick.update(*row, id as i64, 1).unwrap(), Outcome::Written);
        }
    };
    slow.worker.commit(&mut Interrupted { writes: &mut slow.writes, meanwhile }).unwrap();
    setup.begin(Isolation::ReadCommitted);
    assert_eq!(setup.read(rows[0]), Some((0, 2)));
    for (id, row) in rows.iter().enumerate().skip(1) {
        assert_eq!(setup.read(*row), Some((id as i64, 0)), "what is not committed is not seen");
    }
    setup.abort();
    quick.abort();
    drop((setup, slow, quick, between));
    fixture.check_empty();
}

/// What a main does not show is told of the main that was there under the view, whatever a merge puts in its place.
#[test]
#[cfg_attr(miri, ignore = "takes hours there, or maps memory")]
fn what_a_main_does_not_show_does_not_depend_on_merges_since() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    session.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..10).map(|id| session.insert(id, id).unwrap()).collect();
    session.commit().unwrap();
    let mut merger = fixture.session();
    assert!(matches!(fixture.merge(&merger.worker, 0).unwrap(), Merged::Replaced { rows: 10, .. }));
    while !fixture.store.finish_merge(&merger.worker, 0) {}
    // The last rows go, so that the next main is shorter, and the first one changes.
    session.begin(Isolation::ReadCommitted);
    for row in &rows[7..] {
        assert_eq!(session.delete(*row).unwrap(), Outcome::Written);
    }
    assert_eq!(session.update(rows[0], 0, 100).unwrap(), Outcome::Written);
    session.commit().unwrap();
    let view = session.worker.hold_now();
    let main = fixture.store.main(&view, 0);
    let told = |view: &View| -> Vec<(usize, bool)> {
        let apart = fixture.store.range_by(view, 0, main.as_deref()).unwrap().apart(0);
        apart.iter().map(|(row, apart)| (row.position(), matches!(apart, Apart::Deleted))).collect()
    };
    let before = told(&view);
    assert_eq!(before, [(0, false), (7, true), (8, true), (9, true)]);
    merger.begin(Isolation::ReadCommitted);
    merger.abort();
    assert!(matches!(fixture.merge(&merger.worker, 0).unwrap(), Merged::Replaced { rows: 7, .. }));
    assert_eq!(told(&view), before);
    drop(view);
    while !fixture.store.finish_merge(&merger.worker, 0) {}
    drop((session, merger));
    fixture.check_empty();
}

#[test]
fn a_range_is_hot_while_many_of_its_rows_were_written_lately() {
    let fixture = Fixture::tiny();
    let (mut one, looker) = (fixture.session(), fixture.all.worker().unwrap());
    let is_hot = |since: CommitTs| fixture.store.is_hot(&looker.snapshot_now(), 0, since);
    assert!(!is_hot(CommitTs(0)), "there is no range");
    one.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..200).map(|id| one.insert(id, id).unwrap()).collect();
    assert!(is_hot(fixture.all.clock().now()), "rows that are being written");
    let loaded = one.commit().unwrap().unwrap();
    assert!(is_hot(CommitTs(loaded.0 - 1)) && !is_hot(loaded));
    // A few that are written again do not count, many do.
    for (changed, expected) in [(&rows[..6], false), (&rows[..50], true)] {
        one.begin(Isolation::ReadCommitted);
        for row in changed {
            assert_eq!(one.update(*row, 1, 2).unwrap(), Outcome::Written);
        }
        one.commit().unwrap();
        assert_eq!(is_hot(loaded), expected);
    }
    // What is in main alone has no say.
    drop(one);
    let worker = fixture.all.worker().unwrap();
    assert!(matches!(fixture.merge(&worker, 0).unwrap(), Merged::Replaced { .. }));
    assert!(fixture.store.finish_merge(&worker, 0));
    assert!(!is_hot(CommitTs(0)));
    drop((looker, worker));
    fixture.check_empty();
}

#[test]
fn what_was_done_is_told_in_order() {
    use RowLock::*;
    let fixture = Fixture::tiny();
    let (mut one, mut two) = (fixture.session(), fixture.session());
    two.begin(Isolation::ReadCommitted);
    let rows: Vec<RowId> = (0..4).map(|id| two.insert(id, id).unwrap()).collect();
    two.commit().unwrap();
    one.begin(Isolation::ReadCommitted);
    two.begin(Isolation::ReadCommitted);
    let own = one.insert(9, 9).unwrap();
    let inserted = one.image.clone();
    assert_eq!(one.lock(rows[0], KeyShare), Outcome::Written);
    assert_eq!(one.lock(rows[1], NoKeyUpdate), Outcome::Written);
    one.next();
    assert_eq!(one.update(rows[1], 1, 7).unwrap(), Outcome::Written);
    let updated = one.image.clone();
    assert_eq!(one.lock(rows[2], Update), Outcome::Written);
    assert_eq!(one.delete(rows[3]).unwrap(), Outcome::Written);
    let done: Vec<_> =
        one.writes.done(one.worker.tag()).unwrap().into_iter().map(|(_, row, done)| (row, done)).collect();
    let wanted = [
        (own, Done::Put(&inserted[..])),
        (rows[0], Done::Locked(KeyShare)),
        (rows[1], Done::Locked(NoKeyUpdate)),
        (rows[1], Done::Put(&updated[..])),
        (rows[2], Done::Locked(Update)),
        (rows[3], Done::Deleted),
    ];
    assert_eq!(done, wanted);
    // What others see is the same row, whoever looks and wherever it lies.
    let sum = |session: &Session, row| fixture.store.checksum_of(&session.worker.snapshot_now(), row).unwrap();
    assert_eq!(sum(&two, own), None);
    let before = sum(&two, rows[1]);
    one.next();
    assert!(before.is_some() && sum(&one, rows[1]) != before);
    one.abort();
    assert_eq!(sum(&two, rows[1]), before);
    two.abort();
    fixture.merge(&two.worker, rows[1].range()).unwrap();
    two.begin(Isolation::ReadCommitted);
    assert_eq!(sum(&two, rows[1]), before);
    // A whole range is more than rows.
    let group = fixture.encode(&batch(&[(20, 20, &note_of(20))])).unwrap();
    let view = two.worker.snapshot();
    fixture.store.load(&two.worker, &view, &mut two.writes, Arc::new(group)).unwrap();
    drop(view);
    assert!(two.writes.done(two.worker.tag()).is_none());
    drop((one, two));
    fixture.check_empty();
}
