use super::*;
use crate::tests::{memory, near};
use crate::{Database, Isolation, NewIndex, RelationName};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tidepool_base::{Result, SqlState, SqlType};
use tidepool_index::Direction;
use tidepool_index::key::KeyValue;
use tidepool_table::rows::typed::{Column, Text};
use tidepool_table::{ColumnDef, IndexColumn};

struct Fixture {
    database: Arc<Database>,
    table: PreparedTable,
    by_id: PreparedIndex,
    by_place: PreparedIndex,
    id: Column<i64>,
    count: Column<i32>,
    note: Column<Option<Text>>,
}

/// Of an id, a place that many have, a count and a note.
fn fixture() -> Fixture {
    let database = Database::open(memory()).unwrap();
    let never_null = |name, sql_type| ColumnDef { nullable: false, ..ColumnDef::new(name, sql_type) };
    let columns = vec![
        never_null("id", SqlType::BigInt),
        never_null("place", SqlType::Integer),
        never_null("count", SqlType::Integer),
        ColumnDef::new("note", SqlType::Text),
    ];
    let mut transaction = database.begin().unwrap();
    let made = transaction.create_table("t", columns, vec![0], near()).unwrap();
    let number = made.def.columns[1].number;
    let by_place = NewIndex {
        name: Some("by_place".to_owned()),
        columns: vec![IndexColumn::ascending(number)],
        unique: false,
        primary: None,
        ..NewIndex::primary_key([])
    };
    transaction.create_index("t", by_place).unwrap();
    transaction.commit().unwrap();
    let table = database.prepare_table("t").unwrap();
    Fixture {
        by_id: table.primary_key().unwrap(),
        by_place: table.index("by_place").unwrap(),
        id: table.column("id").unwrap(),
        count: table.column("count").unwrap(),
        note: table.column("note").unwrap(),
        table,
        database,
    }
}

impl Fixture {
    fn fill(&self, ids: std::ops::Range<i64>) {
        let mut session = self.database.direct_session().unwrap();
        let insert = |access: Access<'_>| {
            ids.clone()
                .try_for_each(|id| access.insert(&self.table, (id, (id % 3) as i32, 0i32, None::<&str>)).map(drop))
        };
        session.run(Isolation::Serializable, insert).unwrap();
    }

    fn ids(&self, access: Access<'_>, range: ScanRange<(i32,)>, direction: Direction) -> Vec<i64> {
        access.scan(&self.by_place, range, direction).unwrap().map(|row| row.unwrap().get(self.id)).collect()
    }

    fn add(&self, access: Access<'_>, id: i64, amount: i32) -> Result<bool> {
        let row = access.get(&self.by_id, (id,))?.expect("it is there");
        access.update(&self.table, row.id(), |row| row.set(self.count, &(row.old(self.count) + amount)))
    }
}

#[test]
fn a_transaction_sees_what_it_writes_and_others_once_it_has_committed() {
    let f = fixture();
    f.fill(0..10);
    let (mut one, mut other) = (f.database.direct_session().unwrap(), f.database.direct_session().unwrap());
    let writing = one.begin(Isolation::RepeatableRead).unwrap();
    let access = writing.access();
    assert!(f.add(access, 4, 5).unwrap() && f.add(access, 4, 2).unwrap());
    let row = access.get(&f.by_id, (4i64,)).unwrap().unwrap();
    access.update(&f.table, row.id(), |row| row.set(f.note, "ebb")).unwrap();
    // What was found before is as it was then.
    assert_eq!((row.get(f.count), row.get(f.note)), (7, None));
    assert_eq!(access.get_by_id(&f.table, row.id()).unwrap().unwrap().get(f.note), Some("ebb"));
    let gone = access.get(&f.by_id, (7i64,)).unwrap().unwrap().id();
    assert!(access.delete(&f.table, gone).unwrap());
    assert!(!access.delete(&f.table, gone).unwrap());
    assert!(access.get(&f.by_id, (7i64,)).unwrap().is_none());
    access.insert(&f.table, (20i64, 1, 0, Some("new"))).unwrap();
    assert_eq!(f.ids(access, ScanRange::prefix((1,)), Direction::Forward), [1, 4, 20]);
    assert_eq!(f.ids(access, ScanRange::prefix((1,)), Direction::Backward), [20, 4, 1]);
    let looking = other.begin(Isolation::RepeatableRead).unwrap();
    let sees = |transaction: &DirectTransaction<'_>| {
        let access = transaction.access();
        let row = access.get(&f.by_id, (4i64,)).unwrap().unwrap();
        (row.get(f.count), f.ids(access, ScanRange::prefix((1,)), Direction::Forward))
    };
    assert_eq!(sees(&looking), (0, vec![1, 4, 7]));
    assert!(writing.commit().unwrap().is_some());
    assert_eq!(sees(&looking), (0, vec![1, 4, 7]));
    assert!(looking.commit().unwrap().is_none());
    assert_eq!(sees(&other.begin(Isolation::Serializable).unwrap()), (7, vec![1, 4, 20]));
}

#[test]
fn what_is_refused_leaves_nothing_and_the_transaction_goes_on() {
    let f = fixture();
    f.fill(0..3);
    let mut session = f.database.direct_session().unwrap();
    let transaction = session.begin(Isolation::Serializable).unwrap();
    let access = transaction.access();
    let taken = access.insert(&f.table, (1i64, 9, 0, None::<&str>)).unwrap_err();
    assert_eq!(taken.code(), SqlState::UNIQUE_VIOLATION);
    assert!(f.ids(access, ScanRange::prefix((9,)), Direction::Forward).is_empty());
    let row = access.get(&f.by_id, (2i64,)).unwrap().unwrap().id();
    let taken = access.update(&f.table, row, |row| row.set(f.id, &0i64)).unwrap_err();
    assert_eq!(taken.code(), SqlState::UNIQUE_VIOLATION);
    assert_eq!(access.get_by_id(&f.table, row).unwrap().unwrap().get(f.id), 2);
    assert!(access.update(&f.table, row, |row| row.set(f.id, &5i64)).unwrap());
    assert!(access.get(&f.by_id, (2i64,)).unwrap().is_none());
    assert_eq!(access.get(&f.by_place, (1,)).unwrap_err().code(), SqlState::WRONG_OBJECT_TYPE);
    transaction.commit().unwrap();
    drop(session.begin(Isolation::Serializable).map(|transaction| f.add(transaction.access(), 5, 1)));
    let count =
        session.run(Isolation::RepeatableRead, |access| Ok(access.get(&f.by_id, (5i64,))?.map(|row| row.get(f.count))));
    assert_eq!(count.unwrap(), Some(0), "what was not committed is gone");
}

/// Two that each read what the other one writes, and two that each miss a row that the other one adds.
#[test]
fn serializable_transactions_are() {
    let f = fixture();
    f.fill(0..4);
    let skewed = |read: &dyn Fn(Access<'_>, i64), write: &dyn Fn(Access<'_>, i64)| {
        let (mut one, mut other) = (f.database.direct_session().unwrap(), f.database.direct_session().unwrap());
        let (a, b) = (one.begin(Isolation::Serializable).unwrap(), other.begin(Isolation::Serializable).unwrap());
        read(a.access(), 0);
        read(b.access(), 1);
        write(a.access(), 1);
        write(b.access(), 0);
        (a.commit().is_ok(), b.commit().map_err(|error| error.code()).err())
    };
    let failed = (true, Some(SqlState::SERIALIZATION_FAILURE));
    let read = |access: Access<'_>, id: i64| assert!(access.get(&f.by_id, (id,)).unwrap().is_some());
    assert_eq!(skewed(&read, &|access, id| assert!(f.add(access, id, 1).unwrap())), failed);
    let miss = |access: Access<'_>, id: i64| assert!(access.get(&f.by_id, (100 + id,)).unwrap().is_none());
    let put = |access: Access<'_>, id: i64| {
        access.insert(&f.table, (100 + id, 7, 0, None::<&str>)).unwrap();
    };
    assert_eq!(skewed(&miss, &put), failed);
    // The first of a range: a row behind it does not matter, one before it does.
    let first = |access: Access<'_>, _: i64| {
        let rows = access.scan(&f.by_id, ScanRange::between((200i64,), (300,)), Direction::Forward).unwrap();
        assert!(rows.map(Result::unwrap).next().is_some());
    };
    f.fill(250..251);
    let behind = |access: Access<'_>, id: i64| {
        access.insert(&f.table, (270 + id, 8, 0, None::<&str>)).unwrap();
    };
    assert_eq!(skewed(&first, &behind), (true, None));
    let before = |access: Access<'_>, id: i64| {
        access.insert(&f.table, (210 + id, 8, 0, None::<&str>)).unwrap();
    };
    assert_eq!(skewed(&first, &before), failed);
}

#[test]
fn rows_are_found_wherever_they_live() {
    let f = fixture();
    f.fill(0..100);
    f.database.merge("t").unwrap();
    f.database.vacuum();
    let mut session = f.database.direct_session().unwrap();
    session.run(Isolation::Serializable, |access| f.add(access, 42, 3)).unwrap();
    let (sum, rows) = session
        .run(Isolation::RepeatableRead, |access| {
            let (mut sum, mut rows) = (0, 0);
            access.scan_table(&f.table, |row| {
                sum += row.get(f.count);
                rows += 1;
                Ok(())
            })?;
            Ok((sum, rows))
        })
        .unwrap();
    assert_eq!((sum, rows), (3, 100));
    let backwards = session.run(Isolation::RepeatableRead, |access| {
        Ok(f.ids(access, ScanRange::between((1,), (2,)), Direction::Backward).len())
    });
    assert_eq!(backwards.unwrap(), 66);
}

/// Rows in main, changed since, deleted, missing and the transaction's own, in groups of many sizes.
#[test]
fn many_keys_at_once_find_what_each_does() {
    let f = fixture();
    f.fill(0..100);
    f.database.merge("t").unwrap();
    f.fill(100..200);
    let mut session = f.database.direct_session().unwrap();
    session
        .run(Isolation::Serializable, |access| (0..200).step_by(7).try_for_each(|id| f.add(access, id, 3).map(drop)))
        .unwrap();
    let transaction = session.begin(Isolation::Serializable).unwrap();
    let access = transaction.access();
    for id in (0..200i64).step_by(11) {
        let row = access.get(&f.by_id, (id,)).unwrap().unwrap().id();
        assert!(access.delete(&f.table, row).unwrap());
    }
    access.insert(&f.table, (300i64, 1, 9, None::<&str>)).unwrap();
    for size in [0, 1, 3, 16, 17, 250] {
        let keys: Vec<(i64,)> = (0..size).map(|key| (key * 37 % 311 - 2,)).collect();
        let shown = |row: Option<Row<'_>>| row.map(|row| (row.id(), row.get(f.id), row.get(f.count)));
        let together: Vec<_> = access.get_all(&f.by_id, &keys).unwrap().into_iter().map(shown).collect();
        let each: Vec<_> = keys.iter().map(|key| shown(access.get(&f.by_id, *key).unwrap())).collect();
        assert_eq!(together, each);
    }
    assert_eq!(access.get_all(&f.by_place, &[(1,)]).unwrap_err().code(), SqlState::WRONG_OBJECT_TYPE);
    transaction.commit().unwrap();
}

/// Rows that are read ahead of their turn, and changed or taken away before it.
#[test]
fn a_scan_sees_what_its_transaction_writes_meanwhile() {
    for expected in [None, Some(0), Some(10), Some(1000)] {
        check_changes_in_a_scan(expected);
    }
}

fn check_changes_in_a_scan(expecting: Option<usize>) {
    let f = fixture();
    f.fill(0..60);
    let mut session = f.database.direct_session().unwrap();
    let transaction = session.begin(Isolation::Serializable).unwrap();
    let access = transaction.access();
    let mut found = Vec::new();
    let scan = access.scan(&f.by_id, ScanRange::all(), Direction::Forward).unwrap();
    for row in expecting.into_iter().fold(scan, |scan, rows| scan.expecting(rows)) {
        let row = row.unwrap();
        let id = row.get(f.id);
        found.push((id, row.get(f.count)));
        if id % 3 == 0 {
            assert!(f.add(access, id, 100).unwrap());
            let next = access.get(&f.by_id, (id + 1,)).unwrap().unwrap().id();
            assert!(access.delete(&f.table, next).unwrap());
            assert!(f.add(access, id + 2, 7).unwrap());
        }
    }
    let expected: Vec<(i64, i32)> =
        (0..60).filter(|id| id % 3 != 1).map(|id| (id, if id % 3 == 0 { 0 } else { 7 })).collect();
    assert_eq!(found, expected);
    transaction.commit().unwrap();
}

/// A key that was looked for among others, and was not there, is there when the transaction commits.
#[test]
fn many_keys_at_once_are_serializable() {
    let f = fixture();
    f.fill(0..3);
    let (mut one, mut other) = (f.database.direct_session().unwrap(), f.database.direct_session().unwrap());
    for (changed, is_there) in [(2i64, true), (7, false)] {
        let looking = one.begin(Isolation::Serializable).unwrap();
        let found = looking.access().get_all(&f.by_id, &[(1i64,), (changed,)]).unwrap();
        assert_eq!(found[1].is_some(), is_there);
        f.add(looking.access(), 0, 1).unwrap();
        other
            .run(Isolation::Serializable, |access| match is_there {
                true => f.add(access, changed, 1).map(drop),
                false => access.insert(&f.table, (changed, 1, 0, None::<&str>)).map(drop),
            })
            .unwrap();
        assert_eq!(looking.commit().unwrap_err().code(), SqlState::SERIALIZATION_FAILURE);
    }
}

/// Sums hold, while a table is altered again and again beside those who write to it.
#[test]
fn tables_are_altered_beside_direct_transactions() {
    let f = fixture();
    f.fill(0..20);
    let over = AtomicBool::new(false);
    let moved: i64 = std::thread::scope(|scope| {
        let movers: Vec<_> = (0..2i64)
            .map(|seed| {
                let (f, over) = (&f, &over);
                scope.spawn(move || {
                    let mut session = f.database.direct_session().unwrap();
                    let (mut state, mut moved) = (seed, 0);
                    while !over.load(Ordering::Relaxed) {
                        state = (state * 7 + 5) % 1009;
                        let (from, to) = (state % 20, (state / 20) % 20);
                        let done = session.run(Isolation::Serializable, |access| {
                            f.add(access, from, -1)?;
                            f.add(access, to, 1)?;
                            access.insert(&f.table, (1000 + 2 * moved + seed, 5, 0, None::<&str>)).map(drop)
                        });
                        done.unwrap();
                        moved += 1;
                    }
                    moved
                })
            })
            .collect();
        for _ in 0..25 {
            let mut altering = f.database.begin().unwrap();
            let index = NewIndex {
                name: Some("extra".to_owned()),
                columns: vec![IndexColumn::ascending(3)],
                unique: false,
                primary: None,
                ..NewIndex::primary_key([])
            };
            altering.create_index("t", index).unwrap();
            altering.commit().unwrap();
            std::thread::sleep(Duration::from_millis(2));
            let mut altering = f.database.begin().unwrap();
            altering.drop_index(&RelationName::from("extra")).unwrap();
            altering.commit().unwrap();
            let mut altering = f.database.begin().unwrap();
            altering.set_tablespace("t", None, "far").unwrap();
            altering.commit().unwrap();
            std::thread::sleep(Duration::from_millis(2));
            let mut altering = f.database.begin().unwrap();
            altering.set_tablespace("t", None, "near").unwrap();
            altering.commit().unwrap();
        }
        over.store(true, Ordering::Relaxed);
        movers.into_iter().map(|mover| mover.join().unwrap()).sum()
    });
    let mut session = f.database.direct_session().unwrap();
    let (sum, rows) = session
        .run(Isolation::RepeatableRead, |access| {
            let (mut sum, mut rows) = (0, 0);
            for row in access.scan(&f.by_id, ScanRange::all(), Direction::Forward)? {
                sum += row?.get(f.count);
                rows += 1;
            }
            Ok((sum, rows))
        })
        .unwrap();
    assert_eq!((sum, rows), (0, 20 + moved));
}

#[test]
fn a_dropped_table_is_no_more_and_another_of_its_name_is_found() {
    let f = fixture();
    f.fill(0..3);
    let mut session = f.database.direct_session().unwrap();
    let mut dropping = f.database.begin().unwrap();
    dropping.drop_table("t").unwrap();
    dropping.commit().unwrap();
    let get = |access: Access<'_>| access.get(&f.by_id, (1i64,)).map(|row| row.is_some());
    assert_eq!(session.run(Isolation::Serializable, get).unwrap_err().code(), SqlState::UNDEFINED_TABLE);
    let mut making = f.database.begin().unwrap();
    let columns = vec![ColumnDef { nullable: false, ..ColumnDef::new("id", SqlType::BigInt) }];
    making.create_table("t", columns, vec![0], near()).unwrap();
    making.commit().unwrap();
    assert!(!session.run(Isolation::Serializable, get).unwrap());
    session.run(Isolation::Serializable, |access| access.insert(&f.table, (1i64,))).unwrap();
    assert!(session.run(Isolation::Serializable, get).unwrap());
}

#[test]
fn procedures_are_part_of_their_callers_transaction() {
    let f = Arc::new(fixture());
    f.fill(0..3);
    let own = f.clone();
    let add = move |access: Access<'_>, arguments: &[KeyValue<'_>]| -> Result<()> {
        let [KeyValue::BigInt(id), KeyValue::Integer(amount)] = arguments else { panic!("its arguments are checked") };
        own.add(access, *id, *amount)?;
        // It sees what it wrote.
        own.add(access, *id, *amount).map(drop)
    };
    let arguments = [("id", SqlType::BigInt), ("amount", SqlType::Integer)];
    f.database.procedures().register("add", &arguments, add).unwrap();
    let twice = f.database.procedures().register("add", &[], |_, _| Ok(()));
    assert_eq!(twice.unwrap_err().code(), SqlState::DUPLICATE_FUNCTION);
    let procedure = f.database.procedures().get("add").unwrap();
    let call = |transaction: &mut crate::Transaction, amount| {
        transaction.call(&procedure, &[KeyValue::BigInt(1), KeyValue::Integer(amount)])
    };
    let count = || {
        let mut session = f.database.direct_session().unwrap();
        let count = |access: Access<'_>| Ok(access.get(&f.by_id, (1i64,))?.map(|row| row.get(f.count)));
        session.run(Isolation::RepeatableRead, count).unwrap()
    };
    for isolation in [Isolation::ReadCommitted, Isolation::RepeatableRead, Isolation::Serializable] {
        let before = count().unwrap();
        let mut rolled_back = f.database.begin_at(isolation).unwrap();
        call(&mut rolled_back, 100).unwrap();
        rolled_back.rollback();
        let mut transaction = f.database.begin_at(isolation).unwrap();
        call(&mut transaction, 1).unwrap();
        call(&mut transaction, 2).unwrap();
        assert_eq!(count(), Some(before));
        transaction.commit().unwrap();
        assert_eq!(count(), Some(before + 6));
    }
}
