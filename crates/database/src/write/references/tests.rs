//! Foreign keys without SQL: what a commit checks by itself, and what survives a restart.

use crate::tests::{batch_of, in_folder, memory, near};
use crate::write::index::tests::leave_indexes;
use crate::{Config, Database, NewForeignKey, NewPartition, Transaction};
use std::sync::Arc;
use tidepool_base::{Error, Result, RowId, SqlState, SqlType};
use tidepool_table::{ColumnDef, PartitionBound, PartitionStrategy, Partitioning, ReferentialAction, TableDef};

fn family(config: Config, action: ReferentialAction, deferrable: bool) -> Arc<Database> {
    let database = Database::open(config).unwrap();
    let mut transaction = database.begin().unwrap();
    let id = ColumnDef { nullable: false, ..ColumnDef::new("id", SqlType::BigInt) };
    let refers = ColumnDef::new("r", SqlType::Integer);
    let parent = transaction.create_table("p", vec![id.clone()], vec![0], near()).unwrap();
    transaction.create_table("c", vec![id, refers], vec![0], near()).unwrap();
    let new = NewForeignKey {
        name: None,
        columns: vec![2],
        referenced: parent.def.id,
        referenced_columns: Vec::new(),
        match_full: false,
        on_delete: action,
        on_update: action,
        not_valid: false,
        deferrable,
        initially_deferred: deferrable,
    };
    assert_eq!(transaction.create_foreign_key("c", new).unwrap(), "c_r_fkey");
    transaction.commit().unwrap();
    database
}

fn insert(transaction: &mut Transaction, table: &str, rows: &[&[Option<i64>]]) -> Result<u64> {
    let texts: Vec<Vec<Option<String>>> =
        rows.iter().map(|row| row.iter().map(|value| value.map(|value| value.to_string())).collect()).collect();
    let mut writer = transaction.writer(table)?;
    let batch = batch_of(&writer.table().def.clone(), &texts);
    writer.write(&batch)?;
    transaction.absorb(writer)
}

fn rows(database: &Arc<Database>, table: &str) -> Vec<RowId> {
    let version = database.version();
    let table = version.table(table).unwrap();
    let first = |number: u64| (0..64).map(move |position| RowId::new(number, position));
    let all = table.parts().into_iter().flat_map(first);
    all.filter(|row| table.rows().read(table.view(), *row).is_some()).collect()
}

fn code(error: &Error) -> SqlState {
    error.code()
}

#[test]
fn a_commit_checks_what_nobody_has() {
    let database = family(memory(), ReferentialAction::NoAction, false);
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "p", &[&[Some(1)], &[Some(2)]]).unwrap();
    insert(&mut transaction, "c", &[&[Some(1), Some(1)], &[Some(2), None]]).unwrap();
    transaction.check_references(&()).unwrap();
    transaction.commit().unwrap();
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "c", &[&[Some(3), Some(3)]]).unwrap();
    assert_eq!(code(&transaction.commit().unwrap_err()), SqlState::FOREIGN_KEY_VIOLATION);
    let mut transaction = database.begin().unwrap();
    let first = rows(&database, "p")[0];
    transaction.delete("p", &[first]).unwrap();
    let error = transaction.commit().unwrap_err();
    assert_eq!(error.detail(), Some("Key (id)=(1) is still referenced from table \"c\"."));
    let mut transaction = database.begin().unwrap();
    transaction.delete("c", &rows(&database, "c")).unwrap();
    transaction.delete("p", &[first]).unwrap();
    transaction.commit().unwrap();
    assert_eq!(rows(&database, "p").len(), 1);
}

#[test]
fn what_is_undone_is_not_checked() {
    let database = family(memory(), ReferentialAction::NoAction, true);
    let mut transaction = database.begin().unwrap();
    let savepoint = transaction.savepoint();
    insert(&mut transaction, "c", &[&[Some(1), Some(1)]]).unwrap();
    transaction.check_references(&()).unwrap();
    transaction.roll_back_to(&savepoint);
    insert(&mut transaction, "c", &[&[Some(2), None]]).unwrap();
    transaction.commit().unwrap();
    // Checked early, and at the end again.
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "c", &[&[Some(3), Some(3)]]).unwrap();
    transaction.check_references(&()).unwrap();
    assert_eq!(code(&transaction.set_constraints(None, false).unwrap_err()), SqlState::FOREIGN_KEY_VIOLATION);
    insert(&mut transaction, "p", &[&[Some(3)]]).unwrap();
    transaction.set_constraints(None, false).unwrap();
    transaction.commit().unwrap();
    assert_eq!(rows(&database, "c").len(), 2);
}

#[test]
fn verification_finds_rows_that_refer_to_nothing() {
    let database = family(memory(), ReferentialAction::NoAction, false);
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "p", &[&[Some(1)], &[Some(2)]]).unwrap();
    insert(&mut transaction, "c", &[&[Some(1), Some(1)], &[Some(2), None]]).unwrap();
    transaction.commit().unwrap();
    let faults = || {
        let checked = database.check(&|| Ok(())).unwrap();
        checked.into_iter().flat_map(|checked| checked.faults).collect::<Vec<_>>()
    };
    assert_eq!(faults(), [""; 0]);
    // Past the checks.
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "c", &[&[Some(3), Some(7)]]).unwrap();
    transaction.references = super::References::default();
    transaction.commit().unwrap();
    assert_eq!(faults(), ["foreign key \"c_r_fkey\": Key (r)=(7) is not present in table \"p\"."]);
}

#[test]
fn verification_looks_into_partitions() {
    let database = family(memory(), ReferentialAction::NoAction, false);
    let mut transaction = database.begin().unwrap();
    let columns = vec![ColumnDef::new("id", SqlType::BigInt), ColumnDef::new("r", SqlType::BigInt)];
    let whole = transaction.create_table("whole", columns.clone(), Vec::new(), near()).unwrap().def.clone();
    let partitioning = Partitioning { strategy: PartitionStrategy::Range, columns: vec![1], partitions: Vec::new() };
    let def = TableDef { partitioning: Some(partitioning), ..TableDef::clone(&whole) };
    transaction.set_table_def(&"whole".into(), def).unwrap();
    let referenced = transaction.version().table("p").unwrap().def.id;
    let new = NewForeignKey {
        name: None,
        columns: vec![2],
        referenced,
        referenced_columns: Vec::new(),
        match_full: false,
        on_delete: ReferentialAction::NoAction,
        on_update: ReferentialAction::NoAction,
        not_valid: false,
        deferrable: false,
        initially_deferred: false,
    };
    transaction.create_foreign_key("whole", new).unwrap();
    transaction.create_table("rest", columns, Vec::new(), near()).unwrap();
    let partition = NewPartition { parent: whole.id, bound: PartitionBound::Default };
    transaction.attach_partition(&"rest".into(), &partition).unwrap();
    insert(&mut transaction, "p", &[&[Some(1)]]).unwrap();
    insert(&mut transaction, "whole", &[&[Some(1), Some(1)], &[Some(2), Some(7)]]).unwrap();
    // Past the checks.
    transaction.references = super::References::default();
    transaction.commit().unwrap();
    let checked = database.check(&|| Ok(())).unwrap();
    let faults: Vec<String> = checked.into_iter().flat_map(|checked| checked.faults).collect();
    assert_eq!(faults, ["foreign key \"whole_r_fkey\": Key (r)=(7) is not present in table \"p\"."]);
}

#[test]
fn foreign_keys_survive_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let config = || Config { data_dir: Some(folder.path().to_owned()), ..memory() };
    let database = family(config(), ReferentialAction::Cascade, false);
    let fill = |database: &Arc<Database>, from: i64| {
        let mut transaction = database.begin().unwrap();
        for id in from..from + 3 {
            insert(&mut transaction, "p", &[&[Some(id)]]).unwrap();
            insert(&mut transaction, "c", &[&[Some(id), Some(id)]]).unwrap();
        }
        transaction.commit().unwrap();
    };
    fill(&database, 1);
    let check = |database: &Arc<Database>| {
        let mut transaction = database.begin().unwrap();
        insert(&mut transaction, "c", &[&[Some(100), Some(100)]]).unwrap();
        assert_eq!(code(&transaction.commit().unwrap_err()), SqlState::FOREIGN_KEY_VIOLATION);
        let children = rows(database, "c").len();
        let mut transaction = database.begin().unwrap();
        transaction.delete("p", &rows(database, "p")[..1]).unwrap();
        transaction.commit().unwrap();
        assert_eq!(rows(database, "c").len(), children - 1);
    };
    check(&database);
    database.close().unwrap();
    drop(database);
    // From the folder's manifest, and then from the log.
    let database = Database::open(config()).unwrap();
    check(&database);
    let mut transaction = database.begin().unwrap();
    transaction.drop_foreign_key("c", "c_r_fkey").unwrap();
    transaction.commit().unwrap();
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "c", &[&[Some(100), Some(100)]]).unwrap();
    transaction.commit().unwrap();
    let state = database.version().state().clone();
    assert_eq!(state.foreign_keys_to(state.tables[&"p".into()].def.id).count(), 0);
}

#[test]
fn parents_are_found_before_their_indexes_are_complete_after_a_start() {
    let folder = tempfile::tempdir().unwrap();
    let database = family(in_folder(folder.path()), ReferentialAction::NoAction, false);
    let mut transaction = database.begin().unwrap();
    for id in 0..500 {
        insert(&mut transaction, "p", &[&[Some(id)]]).unwrap();
    }
    insert(&mut transaction, "c", &[&[Some(1), Some(7)]]).unwrap();
    transaction.commit().unwrap();
    assert!(database.merge("p").unwrap() > 0);
    database.close().unwrap();
    drop(database);
    leave_indexes();
    let database = Database::open(in_folder(folder.path())).unwrap();
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "c", &[&[Some(2), Some(8)]]).unwrap();
    transaction.commit().unwrap();
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "c", &[&[Some(3), Some(500)]]).unwrap();
    assert_eq!(code(&transaction.commit().unwrap_err()), SqlState::FOREIGN_KEY_VIOLATION);
    for (parent, gone) in [(7, false), (8, false), (9, true)] {
        let mut transaction = database.begin().unwrap();
        transaction.delete("p", &[RowId::new(0, parent)]).unwrap();
        assert_eq!(transaction.commit().is_ok(), gone, "{parent}");
    }
    let version = database.version();
    let parents = version.table("p").unwrap();
    assert!(!parents.table().indexes()[0].is_complete_for(parents.view()));
}
