//! Indexes made, made anew and dropped while others write.

use crate::tests::{end, in_folder, memory};
use crate::write::index::tests::{code, find, insert, table, update};
use crate::{Database, NewIndex, RelationName};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use tidepool_base::{Error, Result, RowId, SqlState};
use tidepool_table::{IndexColumn, TableDef, TableVersion};
use tidepool_txn::Isolation;

fn by_name(unique: bool) -> NewIndex {
    NewIndex {
        name: Some("by_name".to_owned()),
        columns: vec![IndexColumn::ascending(2)],
        unique,
        nulls_not_distinct: false,
        primary: None,
        tablespace: Some("far".to_owned()),
        partition_of: None,
    }
}

fn make(database: &Arc<Database>, unique: bool) -> Result<String> {
    database.create_index_online(|| database.begin(), &RelationName::from("t"), |_| Ok(by_name(unique)))
}

fn remake(database: &Arc<Database>) -> Result<()> {
    database.reindex_online(|| database.begin(), &RelationName::from("by_name"))
}

fn check(database: &Database) {
    for checked in database.check(&|| Ok(())).unwrap() {
        assert_eq!(checked.faults, Vec::<String>::new());
    }
}

/// Names of the table's indexes, each with whether it can be relied on.
fn indexes(database: &Database) -> Vec<(String, bool)> {
    let version = database.version();
    let table = version.table("t").unwrap();
    table.def.indexes.iter().map(|index| (index.name.clone(), !index.building)).collect()
}

fn add(database: &Arc<Database>, rows: &[(i64, &str)]) -> Result<()> {
    let mut transaction = database.begin()?;
    insert(&mut transaction, rows)?;
    transaction.commit().map(drop)
}

fn row_of(database: &Database, id: i64) -> RowId {
    find(database, id)[0].0
}

#[test]
fn writers_go_on_while_an_index_is_filled() {
    let database = table(memory());
    add(&database, &[(1, "a"), (2, "b"), (3, "c"), (4, "d")]).unwrap();
    let mut declaring = database.begin().unwrap();
    let (of, index) = declaring.declare_index(&RelationName::from("t"), |_| Ok(by_name(true))).unwrap();
    declaring.commit().unwrap();
    assert_eq!(indexes(&database), [("t_pkey".to_owned(), true), ("by_name".to_owned(), false)]);
    // Before the rows that were there are in it: new keys, changed ones, one taken back, and one that goes.
    let mut open = database.begin().unwrap();
    insert(&mut open, &[(5, "e")]).unwrap();
    update(&mut open, row_of(&database, 1), 1, "z").unwrap();
    let mut deleting = database.begin().unwrap();
    deleting.delete("t", &[row_of(&database, 2)]).unwrap();
    deleting.commit().unwrap();
    let mut undone = database.begin().unwrap();
    update(&mut undone, row_of(&database, 3), 3, "y").unwrap();
    undone.rollback();
    let error = add(&database, &[(6, "e2"), (7, "e2")]).unwrap_err();
    assert_eq!(code(&error), SqlState::UNIQUE_VIOLATION, "writers keep it, so it is unique among them");

    let mut filling = database.begin().unwrap();
    let name = filling.lock_to_fill(of, index.id).unwrap();
    let filled = filling.fill(&name, index.id).unwrap();
    // The lock that it has keeps nobody from writing, whether begun before or after.
    insert(&mut open, &[(8, "f")]).unwrap();
    add(&database, &[(9, "g")]).unwrap();
    let mut repeating = database.begin_at(Isolation::RepeatableRead).unwrap();
    repeating.begin_statement().unwrap();
    filling.complete(&filled, index.id).unwrap();
    filling.commit().unwrap();
    insert(&mut repeating, &[(14, "h")]).unwrap();
    repeating.commit().unwrap();
    update(&mut open, row_of(&database, 4), 4, "x").unwrap();
    open.commit().unwrap();
    assert_eq!(indexes(&database)[1], ("by_name".to_owned(), true));
    check(&database);
    let error = add(&database, &[(10, "x")]).unwrap_err();
    assert_eq!(code(&error), SqlState::UNIQUE_VIOLATION);
    add(&database, &[(11, "a"), (12, "b"), (13, "d")]).unwrap();
    // A snapshot from before the index: whoever writes by it would not keep the index.
    let mut repeating = database.begin_at(Isolation::RepeatableRead).unwrap();
    repeating.begin_statement().unwrap();
    let mut dropping = database.begin().unwrap();
    dropping.drop_index_online(&RelationName::from("by_name")).unwrap();
    dropping.commit().unwrap();
    insert(&mut repeating, &[(15, "x")]).unwrap();
    repeating.commit().unwrap();
    let mut repeating = database.begin_at(Isolation::RepeatableRead).unwrap();
    repeating.begin_statement().unwrap();
    make(&database, false).unwrap();
    let error = insert(&mut repeating, &[(16, "i")]).unwrap_err();
    assert_eq!(code(&error), SqlState::SERIALIZATION_FAILURE);
    drop(repeating);
    check(&database);
}

#[test]
fn a_key_that_is_there_twice_leaves_no_index() {
    let database = table(memory());
    add(&database, &[(1, "a"), (2, "b"), (3, "b")]).unwrap();
    let error = make(&database, true).unwrap_err();
    assert_eq!(code(&error), SqlState::UNIQUE_VIOLATION);
    assert_eq!(error.message(), "could not create unique index \"by_name\"");
    assert_eq!(error.detail(), Some("Key (name)=(b) is duplicated."));
    assert_eq!(indexes(&database).len(), 1);
    add(&database, &[(4, "b")]).unwrap();
    make(&database, false).unwrap();
    assert_eq!(indexes(&database).len(), 2);
    check(&database);
}

/// Two rows have a key when the index is filled, and one of them is being deleted, or given another.
fn undecided(commits: bool) -> Result<()> {
    let database = table(memory());
    add(&database, &[(1, "a"), (2, "b"), (3, "b"), (4, "c"), (5, "c")]).unwrap();
    let mut declaring = database.begin().unwrap();
    let (of, index) = declaring.declare_index(&RelationName::from("t"), |_| Ok(by_name(true))).unwrap();
    declaring.commit().unwrap();
    let mut open = database.begin().unwrap();
    open.delete("t", &[row_of(&database, 3)]).unwrap();
    update(&mut open, row_of(&database, 4), 4, "d").unwrap();
    let filling = {
        let database = Arc::clone(&database);
        thread::spawn(move || {
            let mut filling = database.begin().unwrap();
            let name = filling.lock_to_fill(of, index.id).unwrap();
            let table = filling.fill(&name, index.id)?;
            filling.complete(&table, index.id)?;
            filling.commit().map(drop)
        })
    };
    while database.transactions().waits().is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    if commits {
        open.commit().unwrap();
    } else {
        open.rollback();
    }
    let filled = filling.join().unwrap();
    if filled.is_ok() {
        check(&database);
    }
    filled
}

#[test]
fn who_is_in_a_keys_way_is_waited_for() {
    undecided(true).unwrap();
    let error = undecided(false).unwrap_err();
    assert_eq!(code(&error), SqlState::UNIQUE_VIOLATION);
}

#[test]
fn an_index_made_anew_is_as_unique_for_who_knows_it_by_its_first_name() {
    let database = table(memory());
    add(&database, &[(1, "a"), (2, "b")]).unwrap();
    let mut declaring = database.begin().unwrap();
    let (of, old, new) = declaring.declare_again(&RelationName::from("t_pkey")).unwrap();
    declaring.commit().unwrap();
    let mut repeating = database.begin_at(Isolation::RepeatableRead).unwrap();
    repeating.begin_statement().unwrap();
    insert(&mut repeating, &[(3, "c")]).unwrap();
    let mut filling = database.begin().unwrap();
    let name = filling.lock_to_fill(of, new).unwrap();
    let filled = filling.fill(&name, new).unwrap();
    filling.replace_index(&filled, old, new).unwrap();
    filling.commit().unwrap();
    add(&database, &[(4, "d")]).unwrap();
    let error = insert(&mut repeating, &[(4, "again")]).unwrap_err();
    assert_eq!(code(&error), SqlState::UNIQUE_VIOLATION);
    insert(&mut repeating, &[(5, "e")]).unwrap();
    repeating.commit().unwrap();
    let error = add(&database, &[(5, "again")]).unwrap_err();
    assert_eq!(code(&error), SqlState::UNIQUE_VIOLATION);
    check(&database);
}

#[test]
fn a_statement_that_is_ended_leaves_no_index() {
    struct Ended(AtomicU64);
    impl crate::Patience for Ended {
        fn check(&self) -> Result<()> {
            // At the second look: the first transaction is over by then.
            match self.0.fetch_add(1, Ordering::Relaxed) {
                0 => Ok(()),
                _ => Err(Error::new(SqlState::QUERY_CANCELED, "ended")),
            }
        }

        fn begin_wait(&self) -> Box<dyn Fn() -> Result<()> + '_> {
            Box::new(|| Ok(()))
        }
    }
    let database = table(memory());
    add(&database, &[(1, "a"), (2, "b")]).unwrap();
    let patience = Arc::new(Ended(AtomicU64::new(0)));
    let begin = || {
        let mut transaction = database.begin()?;
        transaction.set_patience(patience.clone());
        Ok(transaction)
    };
    let error = database.create_index_online(begin, &RelationName::from("t"), |_| Ok(by_name(false))).unwrap_err();
    assert_eq!(code(&error), SqlState::QUERY_CANCELED);
    assert_eq!(indexes(&database).len(), 1);
    make(&database, false).unwrap();
}

#[test]
fn an_index_that_was_not_finished_is_gone_after_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let database = table(in_folder(folder.path()));
    add(&database, &[(1, "a"), (2, "b"), (3, "b")]).unwrap();
    for checkpoint in [false, true] {
        let mut declaring = database.begin().unwrap();
        let new = NewIndex { name: Some(format!("unfinished_{checkpoint}")), ..by_name(true) };
        declaring.declare_index(&RelationName::from("t"), |_| Ok(new)).unwrap();
        declaring.commit().unwrap();
        if !checkpoint {
            database.checkpoint().unwrap();
        }
    }
    assert_eq!(indexes(&database).len(), 3);
    end(database);
    let database = Database::open(in_folder(folder.path())).unwrap();
    assert_eq!(indexes(&database), [("t_pkey".to_owned(), true)]);
    make(&database, false).unwrap();
    end(database);
    let database = Database::open(in_folder(folder.path())).unwrap();
    assert_eq!(indexes(&database), [("t_pkey".to_owned(), true), ("by_name".to_owned(), true)]);
    check(&database);
}

/// Threads write rows at random, each its own ids, while indexes come, are made anew, and go.
#[test]
fn indexes_come_and_go_under_writers() {
    const THREADS: i64 = 3;
    const IDS: i64 = 400;
    let database = table(memory());
    let names = ["a", "b", "c", "d", "e"];
    let many: Vec<(i64, &str)> = (0..IDS * THREADS).map(|id| (id, names[id as usize % names.len()])).collect();
    add(&database, &many).unwrap();
    let done = AtomicBool::new(false);
    let rounds = AtomicU64::new(0);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (database, done, rounds) = (&database, &done, &rounds);
            scope.spawn(move || {
                let own = thread * IDS..(thread + 1) * IDS;
                let mut is_there: BTreeMap<i64, bool> = own.clone().map(|id| (id, true)).collect();
                let mut random = thread as u64 + 1;
                let mut draw = |below: u64| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (random >> 33) % below
                };
                while !done.load(Ordering::Relaxed) {
                    let mut transaction = database.begin().unwrap();
                    let before = is_there.clone();
                    for _ in 0..=draw(3) {
                        let id = own.start + draw(IDS as u64) as i64;
                        let name = names[draw(names.len() as u64) as usize];
                        match (is_there[&id], draw(3)) {
                            (true, 0) => {
                                let row = find(database, id).first().map(|row| row.0);
                                // Of its own uncommitted rows it finds none.
                                let Some(row) = row.filter(|_| before[&id]) else { continue };
                                if let crate::Changed::Rows(_) = transaction.delete("t", &[row]).unwrap() {
                                    is_there.insert(id, false);
                                }
                            }
                            (true, _) if before[&id] => {
                                if let Some((row, _)) = find(database, id).first() {
                                    let _ = update(&mut transaction, *row, id, name).unwrap();
                                }
                            }
                            (true, _) => {}
                            (false, _) if !before[&id] => {
                                insert(&mut transaction, &[(id, name)]).unwrap();
                                is_there.insert(id, true);
                            }
                            (false, _) => {}
                        }
                    }
                    if draw(4) == 0 {
                        transaction.rollback();
                        is_there = before;
                    } else {
                        transaction.commit().unwrap();
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                let rows = own.filter(|id| is_there[id]).count();
                let found: usize = (thread * IDS..(thread + 1) * IDS).map(|id| find(database, id).len()).sum();
                assert_eq!(found, rows);
            });
        }
        for round in 0..6 {
            let target = rounds.load(Ordering::Relaxed) + 20;
            make(&database, false).unwrap();
            check(&database);
            remake(&database).unwrap();
            check(&database);
            assert_eq!(indexes(&database), [("t_pkey".to_owned(), true), ("by_name".to_owned(), true)]);
            if round == 3 {
                database.merge("t").unwrap();
            }
            while rounds.load(Ordering::Relaxed) < target {
                thread::sleep(Duration::from_millis(1));
            }
            check(&database);
            let mut dropping = database.begin().unwrap();
            dropping.drop_index_online(&RelationName::from("by_name")).unwrap();
            dropping.commit().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    check(&database);
}

#[test]
fn an_index_made_anew_serves_what_relies_on_it() {
    let database = table(memory());
    add(&database, &[(1, "a"), (2, "b")]).unwrap();
    database.reindex_online(|| database.begin(), &RelationName::from("t_pkey")).unwrap();
    assert_eq!(indexes(&database), [("t_pkey".to_owned(), true)]);
    let version = database.version();
    let def: &TableDef = &version.table("t").unwrap().def;
    assert!(def.indexes[0].is_primary());
    let error = add(&database, &[(2, "again")]).unwrap_err();
    assert_eq!(error.message(), "duplicate key value violates unique constraint \"t_pkey\"");
    assert_eq!(row_of(&database, 2).range(), 0);
    let table = version.table("t").unwrap().table().clone();
    drop(version);
    let seen = TableVersion::of(&table, database.version().view());
    assert_eq!(table.indexes()[0].tree().check(seen.view()).unwrap().entries, 2);
    check(&database);
}
