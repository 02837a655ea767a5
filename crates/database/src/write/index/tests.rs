//! Unique keys between transactions, and indexes through what is done to tables.

use super::{INDEXED_AT_ONCE, IndexedAtOnce};
use crate::by_key::ScanRange;
use crate::tests::{batch_of, in_folder, memory, near};
use crate::{Changed, Config, Database, Isolation, NewIndex, RelationName, TablespaceChange, Transaction, Upserted};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tidepool_base::{Error, Result, RowId, SqlState, SqlType};
use tidepool_device::Location;
use tidepool_table::{ColumnDef, IndexColumn, TableDef};
use tidepool_tablespace::TablespaceConfig;

pub(super) fn table(config: Config) -> Arc<Database> {
    let database = Database::open(config).unwrap();
    let mut transaction = database.begin().unwrap();
    let columns = vec![ColumnDef::new("id", SqlType::BigInt), ColumnDef::new("name", SqlType::Text)];
    let columns = columns.into_iter().map(|column| ColumnDef { nullable: column.name != "id", ..column }).collect();
    transaction.create_table("t", columns, vec![0], near()).unwrap();
    transaction.commit().unwrap();
    database
}

pub(super) fn insert(transaction: &mut Transaction, rows: &[(i64, &str)]) -> Result<u64> {
    let texts: Vec<Vec<Option<String>>> =
        rows.iter().map(|(id, name)| vec![Some(id.to_string()), Some((*name).to_owned())]).collect();
    let mut writer = transaction.writer("t")?;
    let batch = batch_of(&writer.table().def.clone(), &texts);
    writer.write(&batch)?;
    let savepoint = transaction.savepoint();
    transaction.absorb(writer).inspect_err(|_| transaction.roll_back_to(&savepoint))
}

/// The rows with this key, through the index: id and name.
pub(super) fn find(database: &Database, id: i64) -> Vec<(RowId, String)> {
    let version = database.version();
    let seen = version.table("t").unwrap();
    let index = &seen.table().indexes()[0];
    let key = index.codec().encode([tidepool_index::key::KeyValue::BigInt(id)]).unwrap();
    let rows = index.tree().get(seen.view(), &key);
    let mut own = tidepool_table::IndexKey::default();
    let read = |row: &RowId| {
        let found = seen.rows().read(seen.view(), *row)?;
        index.key_of(seen.rows(), found, &mut own).unwrap();
        if own.bytes() != key {
            return None;
        }
        use tidepool_table::rows::{RowRef, Value};
        Some(match found {
            RowRef::Version(image) => match seen.rows().layout().value(image, 1) {
                Value::Bytes(text) => (*row, String::from_utf8(text.to_vec()).unwrap()),
                _ => panic!(),
            },
            RowRef::Main { group, position } => match group.segments()[1].value(position).unwrap() {
                Some(tidepool_table::Datum::Text(text)) => (*row, text),
                _ => panic!(),
            },
        })
    };
    rows.iter().filter_map(read).collect()
}

pub(super) fn update(transaction: &mut Transaction, row: RowId, id: i64, name: &str) -> Result<Changed> {
    let def = transaction.version().table("t").unwrap().def.clone();
    let batch = batch_of(&def, &[vec![Some(id.to_string()), Some(name.to_owned())]]);
    transaction.update("t", &[row], &batch)
}

pub(super) fn code(error: &Error) -> SqlState {
    error.code()
}

#[test]
fn a_key_is_there_once() {
    let database = table(memory());
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, &[(1, "one"), (2, "two")]).unwrap();
    let error = insert(&mut transaction, &[(3, "three"), (1, "again")]).unwrap_err();
    assert_eq!(code(&error), SqlState::UNIQUE_VIOLATION);
    assert_eq!(error.message(), "duplicate key value violates unique constraint \"t_pkey\"");
    assert_eq!(error.detail(), Some("Key (id)=(1) already exists."));
    transaction.commit().unwrap();
    assert_eq!(find(&database, 1).len(), 1);
    assert_eq!(find(&database, 3), []);
    // Whoever deletes it frees it for himself at once.
    let mut transaction = database.begin().unwrap();
    let row = find(&database, 1)[0].0;
    transaction.delete("t", &[row]).unwrap();
    insert(&mut transaction, &[(1, "anew")]).unwrap();
    transaction.commit().unwrap();
    assert_eq!(find(&database, 1)[0].1, "anew");
    // A row keeps its own key.
    let mut transaction = database.begin().unwrap();
    let row = find(&database, 1)[0].0;
    update(&mut transaction, row, 1, "changed").unwrap();
    let error = update(&mut transaction, row, 2, "moved").unwrap_err();
    assert_eq!(code(&error), SqlState::UNIQUE_VIOLATION);
}

/// Two transactions insert one key: the second waits for the first.
fn race(first_commits: bool) -> Result<u64> {
    let database = table(memory());
    let mut first = database.begin().unwrap();
    insert(&mut first, &[(7, "first")]).unwrap();
    let other = {
        let database = database.clone();
        thread::spawn(move || {
            let mut second = database.begin().unwrap();
            let inserted = insert(&mut second, &[(7, "second")]);
            inserted.and_then(|rows| second.commit().map(|_| rows))
        })
    };
    while database.transactions().waits().is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    if first_commits {
        first.commit().unwrap();
    } else {
        first.rollback();
    }
    let second = other.join().unwrap();
    let name = if first_commits { "first" } else { "second" };
    assert_eq!(find(&database, 7).iter().map(|row| &*row.1).collect::<Vec<_>>(), [name]);
    second
}

#[test]
fn who_inserts_a_key_that_another_has_inserted_waits_for_its_end() {
    assert_eq!(code(&race(true).unwrap_err()), SqlState::UNIQUE_VIOLATION);
    assert_eq!(race(false).unwrap(), 1);
}

#[test]
fn who_inserts_a_key_that_another_has_deleted_waits_for_its_end() {
    for commits in [true, false] {
        let database = table(memory());
        let mut transaction = database.begin().unwrap();
        insert(&mut transaction, &[(7, "old")]).unwrap();
        transaction.commit().unwrap();
        let mut first = database.begin().unwrap();
        first.delete("t", &[find(&database, 7)[0].0]).unwrap();
        let other = {
            let database = database.clone();
            thread::spawn(move || {
                let mut second = database.begin().unwrap();
                let inserted = insert(&mut second, &[(7, "new")]);
                inserted.and_then(|rows| second.commit().map(|_| rows))
            })
        };
        while database.transactions().waits().is_empty() {
            thread::sleep(Duration::from_millis(1));
        }
        if commits {
            first.commit().unwrap();
        } else {
            first.rollback();
        }
        let second = other.join().unwrap();
        assert_eq!(second.is_ok(), commits, "{second:?}");
        let name = if commits { "new" } else { "old" };
        assert_eq!(find(&database, 7).iter().map(|row| &*row.1).collect::<Vec<_>>(), [name]);
    }
}

#[test]
fn waits_for_keys_that_would_last_for_ever_are_ended() {
    let database = table(memory());
    let mut first = database.begin().unwrap();
    insert(&mut first, &[(1, "first")]).unwrap();
    let other = {
        let database = database.clone();
        thread::spawn(move || {
            let mut second = database.begin().unwrap();
            insert(&mut second, &[(2, "second")]).unwrap();
            insert(&mut second, &[(1, "second")]).map(|_| drop(second.commit()))
        })
    };
    while database.transactions().waits().is_empty() {
        thread::sleep(Duration::from_millis(1));
    }
    let closed = insert(&mut first, &[(2, "first")]);
    assert_eq!(code(&closed.unwrap_err()), SqlState::DEADLOCK_DETECTED);
    first.rollback();
    other.join().unwrap().unwrap();
    assert_eq!(find(&database, 1)[0].1, "second");
}

#[test]
fn an_index_is_made_of_what_is_there_and_dropped_again() {
    let database = table(memory());
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, &[(1, "a"), (2, "b"), (3, "b")]).unwrap();
    transaction.commit().unwrap();
    let by_name = |unique: bool| NewIndex {
        name: None,
        columns: vec![IndexColumn::ascending(2)],
        unique,
        nulls_not_distinct: false,
        primary: None,
        tablespace: Some("far".to_owned()),
        partition_of: None,
    };
    let mut transaction = database.begin().unwrap();
    let error = transaction.create_index("t", by_name(true)).unwrap_err();
    assert_eq!(code(&error), SqlState::UNIQUE_VIOLATION);
    assert_eq!(error.detail(), Some("Key (name)=(b) is duplicated."));
    let name = transaction.create_index("t", by_name(false)).unwrap();
    assert_eq!(name, "t_name_idx");
    insert(&mut transaction, &[(4, "d")]).unwrap();
    transaction.commit().unwrap();
    let version = database.version();
    let table = version.table("t").unwrap().table().clone();
    assert_eq!(table.indexes().len(), 2);
    assert_eq!(table.indexes()[1].tree().check(version.view()).unwrap().entries, 4);
    assert!(table.indexes()[1].is_complete_for(version.view()));
    drop(version);
    let name = RelationName::from("t_name_idx");
    let mut transaction = database.begin().unwrap();
    transaction.drop_index(&name).unwrap();
    assert!(!table.indexes()[1].is_complete_for(database.version().view()), "rows may be written without it now");
    transaction.rollback();
    assert!(table.indexes()[1].is_complete_for(database.version().view()));
    drop(table);
    let busy = database.drop_tablespace("far").unwrap_err();
    assert_ne!(code(&busy), SqlState::UNDEFINED_OBJECT);
    let mut transaction = database.begin().unwrap();
    transaction.drop_index(&name).unwrap();
    transaction.commit().unwrap();
    assert_eq!(database.version().table("t").unwrap().table().indexes().len(), 1);
}

#[test]
fn indexes_survive_a_restart_and_follow_their_tables() {
    let folder = tempfile::tempdir().unwrap();
    let config = || Config { data_dir: Some(folder.path().to_owned()), ..memory() };
    let database = table(config());
    let mut transaction = database.begin().unwrap();
    let rows: Vec<(i64, &str)> = (0..3000).map(|id| (id, "x")).collect();
    insert(&mut transaction, &rows).unwrap();
    transaction.commit().unwrap();
    database.merge("t").unwrap();
    let row = find(&database, 5)[0].0;
    let mut transaction = database.begin().unwrap();
    update(&mut transaction, row, 5000, "moved").unwrap();
    transaction.commit().unwrap();
    let check = |database: &Arc<Database>| {
        assert_eq!(find(database, 5), []);
        assert_eq!(find(database, 5000)[0].1, "moved");
        assert_eq!(find(database, 2999).len(), 1);
        let mut transaction = database.begin().unwrap();
        assert_eq!(code(&insert(&mut transaction, &[(5000, "")]).unwrap_err()), SqlState::UNIQUE_VIOLATION);
        assert_eq!(code(&insert(&mut transaction, &[(17, "")]).unwrap_err()), SqlState::UNIQUE_VIOLATION);
    };
    check(&database);
    let mut transaction = database.begin().unwrap();
    transaction.set_tablespace("t", None, "far").unwrap();
    transaction.commit().unwrap();
    check(&database);
    assert_eq!(database.version().table("t").unwrap().table().indexes()[0].tree().tablespace().name(), "far");
    database.close().unwrap();
    drop(database);
    let database = Database::open(config()).unwrap();
    check(&database);
    let mut transaction = database.begin().unwrap();
    transaction.truncate("t").unwrap();
    insert(&mut transaction, &[(17, "only")]).unwrap();
    transaction.commit().unwrap();
    assert_eq!(find(&database, 17)[0].1, "only");
    assert_eq!(find(&database, 18), []);
}

/// The indexes of large tables are made when a start is over: readers go on meanwhile, writers find them.
#[test]
fn a_start_does_not_wait_for_the_indexes_of_large_tables() {
    let folder = tempfile::tempdir().unwrap();
    let config = || crate::tests::in_folder(folder.path());
    let database = table(config());
    let rows: Vec<(i64, &str)> = (0..150_000).map(|id| (id * 7_919 % 150_001, "x")).collect();
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, &rows).unwrap();
    transaction.commit().unwrap();
    database.close().unwrap();
    drop(database);
    let mut there = 150_000;
    for round in 0..4 {
        let database = Database::open(config()).unwrap();
        let version = database.version();
        assert_eq!(version.table("t").unwrap().rows_max(), there);
        if round == 1 {
            // Closed before they are there.
            database.close().unwrap();
            continue;
        }
        let mut transaction = database.begin().unwrap();
        assert_eq!(code(&insert(&mut transaction, &[(7_919, "")]).unwrap_err()), SqlState::UNIQUE_VIOLATION);
        drop(transaction);
        let mut transaction = database.begin().unwrap();
        insert(&mut transaction, &[(1_000_000 + round, "")]).unwrap();
        transaction.commit().unwrap();
        there += 1;
        assert_eq!(find(&database, 7_919).len(), 1);
        database.close().unwrap();
    }
}

#[test]
fn keys_that_were_declared_before_they_were_enforced_get_their_indexes() {
    let columns = vec![ColumnDef { number: 0, ..ColumnDef::new("id", SqlType::BigInt) }];
    let mut def = TableDef::new(tidepool_base::TableId(16_384), "t", columns, vec![0]);
    let mut next = 20_000;
    super::add_declared_keys(&mut [&mut def], || {
        next += 1;
        next
    });
    let index = &def.indexes[0];
    assert_eq!((index.name.as_str(), index.unique, index.is_primary()), ("t_pkey", true, true));
    assert_eq!(def.index_positions(index), [0]);
}

#[test]
fn an_index_makes_way_when_its_tablespace_loses_a_device() {
    let database = table(memory());
    let space = TablespaceConfig {
        name: "pool".to_owned(),
        location: "anon:*1, anon:*1".parse().unwrap(),
        size_bytes: Some(64 << 20),
        profile: None,
        profiles: Vec::new(),
        huge_pages: false,
        populate_bytes: 0,
    };
    database.create_tablespace(space).unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.set_index_tablespace(&RelationName::from("t_pkey"), Some("pool")).unwrap();
    transaction.commit().unwrap();
    let rows: Vec<(i64, &str)> = (0..20_000).map(|id| (id * 7_919 % 20_011, "x")).collect();
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, &rows).unwrap();
    transaction.commit().unwrap();
    let refused = database.drop_tablespace("pool").unwrap_err();
    assert_eq!(code(&refused), SqlState::OBJECT_IN_USE);
    // Somebody goes on writing meanwhile.
    let writer = {
        let database = database.clone();
        thread::spawn(move || {
            for id in 30_000..30_200 {
                let mut transaction = database.begin().unwrap();
                insert(&mut transaction, &[(id, "y")]).unwrap();
                transaction.commit().unwrap();
            }
        })
    };
    let change = TablespaceChange::DropLocation { location: Location::Anon };
    database.alter_tablespace("pool", &change, &()).unwrap();
    writer.join().unwrap();
    let version = database.version();
    let index = version.table("t").unwrap().table().indexes()[0].clone();
    assert_eq!(index.tree().tablespace().name(), "pool");
    assert_eq!(index.tree().check(version.view()).unwrap().entries, 20_200);
    drop((version, index));
    assert_eq!(find(&database, 7_919).len(), 1);
    let mut transaction = database.begin().unwrap();
    assert_eq!(code(&insert(&mut transaction, &[(30_100, "")]).unwrap_err()), SqlState::UNIQUE_VIOLATION);
    drop(transaction);
    let mut transaction = database.begin().unwrap();
    transaction.set_index_tablespace(&RelationName::from("t_pkey"), None).unwrap();
    transaction.commit().unwrap();
    database.drop_tablespace("pool").unwrap();
}

/// Nobody fills the indexes of tables that databases find, which this thread opens.
pub(crate) fn leave_indexes() {
    INDEXED_AT_ONCE.set(Some(IndexedAtOnce { rows: 0, leaves_others: true }));
}

#[test]
fn keys_are_there_once_before_indexes_are_complete_after_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let database = table(in_folder(folder.path()));
    let mut transaction = database.begin().unwrap();
    let rows: Vec<(i64, &str)> = (0..3000).map(|id| (2 * id, "main")).collect();
    insert(&mut transaction, &rows).unwrap();
    transaction.commit().unwrap();
    assert!(database.merge("t").unwrap() > 0);
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, &[(1, "delta")]).unwrap();
    transaction.commit().unwrap();
    database.close().unwrap();
    drop(database);

    leave_indexes();
    let database = Database::open(in_folder(folder.path())).unwrap();
    let is_complete = || {
        let version = database.version();
        let table = version.table("t").unwrap();
        table.table().indexes()[0].is_complete_for(table.view())
    };
    let code_of = |rows: &[(i64, &str)]| {
        let mut transaction = database.begin().unwrap();
        let inserted = insert(&mut transaction, rows);
        inserted.and_then(|_| transaction.commit()).map_err(|error| error.code()).err()
    };
    let taken = Some(SqlState::UNIQUE_VIOLATION);
    assert_eq!(code_of(&[(10, "again")]), taken);
    assert_eq!(code_of(&[(1, "again")]), taken);
    assert_eq!(code_of(&[(7, "new"), (6001, "new")]), None);
    assert_eq!(code_of(&[(7, "again")]), taken);
    // A key that its row gives up can be another's, and comes back.
    let prepared = database.prepare_table("t").unwrap();
    let (by_id, id) = (prepared.primary_key().unwrap(), prepared.column::<i64>("id").unwrap());
    let mut session = database.direct_session().unwrap();
    let place = |session: &mut crate::by_key::DirectSession, key: i64| {
        let find = |access: crate::by_key::Access<'_>| Ok(access.get(&by_id, (key,))?.map(|row| row.id()));
        session.run(Isolation::RepeatableRead, find).unwrap()
    };
    let (eight, ten) = (place(&mut session, 8).unwrap(), place(&mut session, 10).unwrap());
    let mut transaction = database.begin().unwrap();
    transaction.delete("t", &[ten]).unwrap();
    update(&mut transaction, eight, 9, "moved").unwrap();
    transaction.commit().unwrap();
    assert_eq!((place(&mut session, 8), place(&mut session, 9)), (None, Some(eight)));
    assert_eq!(code_of(&[(9, "again")]), taken);
    assert_eq!(code_of(&[(8, "another"), (10, "another")]), None);
    assert_eq!(code_of(&[(10, "again")]), taken);
    // By all other ways to a key.
    let mut transaction = database.begin().unwrap();
    let def = transaction.version().table("t").unwrap().def.clone();
    let batch = batch_of(&def, &["12", "13"].map(|id| vec![Some(id.to_owned()), None]));
    let upserted = transaction.upsert("t", &batch, &[def.indexes[0].id], None).unwrap();
    assert!(matches!(upserted[..], [Upserted::Skipped, Upserted::Inserted]), "{upserted:?}");
    transaction.commit().unwrap();
    let find = |access: crate::by_key::Access<'_>| {
        let found = access.get_all(&by_id, &[(14i64,), (15,), (16,)])?;
        Ok(found.iter().map(Option::is_some).collect::<Vec<_>>())
    };
    assert_eq!(session.run(Isolation::RepeatableRead, find).unwrap(), [true, false, true]);
    assert!(!is_complete());
    let scan = |access: crate::by_key::Access<'_>| {
        let range = ScanRange::between((5i64,), (14i64,));
        access.scan(&by_id, range, tidepool_index::Direction::Forward)?.map(|row| Ok(row?.get(id))).collect()
    };
    let ids: Vec<i64> = session.run(Isolation::Serializable, scan).unwrap();
    assert_eq!(ids, [6, 7, 8, 9, 10, 12, 13, 14]);
    for checked in database.check(&|| Ok(())).unwrap() {
        assert!(checked.faults.is_empty(), "{}: {:?}", checked.object, checked.faults);
    }
    assert!(is_complete());
    assert_eq!(code_of(&[(20, "again")]), taken);
}
