//! Ids that are drawn: after kills, beside merges, and where something names one twice.

use crate::durability::redo::AT_POINT;
use crate::durability::storage::Manifest;
use crate::tests::{columns, database_with_table, end, in_folder, insert, insert_and_commit, placement, rows};
use crate::{Database, RelationName, SequenceDef, check_folder, reset_sequences};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use tidepool_base::{SchemaId, SqlState, SqlType, TableId};
use tidepool_table::ROW_GROUP_ROWS;

/// As many as a load makes a row group of.
const ROWS: usize = ROW_GROUP_ROWS;

fn reopened(folder: &Path) -> Arc<Database> {
    Database::open(in_folder(folder)).unwrap()
}

fn row_groups(database: &Database, table: &str) -> Vec<u64> {
    database.version().table(table).unwrap().row_groups.iter().map(|group| group.id().0).collect()
}

fn manifest(folder: &Path) -> Manifest {
    Manifest::from_bytes(&std::fs::read(folder.join("MANIFEST")).unwrap()).unwrap()
}

/// Changes the manifest of a folder that nobody uses.
fn change_manifest(folder: &Path, change: impl FnOnce(&mut Manifest)) {
    let mut manifest = manifest(folder);
    change(&mut manifest);
    std::fs::write(folder.join("MANIFEST"), manifest.to_bytes().unwrap()).unwrap();
}

fn check_is_sound(folder: &Path) {
    for checked in check_folder(&in_folder(folder)).unwrap() {
        assert!(checked.faults.is_empty(), "{checked:?}");
    }
}

/// Loads that only the log names keep their rows when more is loaded after a kill.
#[test]
fn loads_between_kills_keep_their_rows() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    database.checkpoint().unwrap();
    end(database);
    let mut seen = BTreeSet::new();
    for round in 0..4 {
        let database = reopened(folder.path());
        // Two tables: an id that is drawn again may be the same table's, or another one's.
        let other = format!("u{round}");
        let mut transaction = database.begin().unwrap();
        transaction.create_table(&other, columns(), vec![], placement("far")).unwrap();
        insert(&mut transaction, &other, 0..ROWS).unwrap();
        transaction.commit().unwrap();
        insert_and_commit(&database, "t", round * 2 * ROWS..(round + 1) * 2 * ROWS);
        let before = rows(&database, "t");
        end(database);
        check_is_sound(folder.path());
        let database = reopened(folder.path());
        assert!(rows(&database, "t") == before, "round {round}");
        for (other, name) in (0..=round).map(|other| (other, format!("u{other}"))) {
            assert_eq!(rows(&database, &name).len(), ROWS, "round {round}, {other}");
        }
        let all = (0..=round).flat_map(|other| row_groups(&database, &format!("u{other}")));
        let all: Vec<u64> = all.chain(row_groups(&database, "t")).collect();
        seen = all.iter().copied().collect();
        assert_eq!(seen.len(), all.len(), "round {round}: an id is there twice");
        if round == 2 {
            database.checkpoint().unwrap();
        }
        end(database);
    }
    assert_eq!(seen.len(), 4 * 3);
}

/// A checkpoint says that ids may have been drawn which a merge draws between its view and its look at the tables.
#[test]
fn a_checkpoint_counts_what_is_merged_beneath_it() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..500);
    let merging = database.clone();
    AT_POINT.set(Some(Box::new(move |point| {
        if point == "checkpoint.view" {
            assert_eq!(merging.merge("t").unwrap(), 500);
        }
    })));
    database.checkpoint().unwrap();
    AT_POINT.set(None);
    let saved = manifest(folder.path());
    let named = saved.tables[0].row_groups.iter().map(|file| file.id).max();
    assert!(named.is_some_and(|named| named < saved.next_row_group_id), "{named:?} {}", saved.next_row_group_id);
    end(database);
    let database = reopened(folder.path());
    insert_and_commit(&database, "t", 500..500 + ROWS);
    let before = rows(&database, "t");
    end(database);
    let database = reopened(folder.path());
    assert!(rows(&database, "t") == before);
    database.close().unwrap();
}

/// A folder that says too little of what was drawn, as earlier releases left it: ids go on above all that it names.
#[test]
fn counters_are_raised_above_what_a_folder_names() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..ROWS + 10);
    database.checkpoint().unwrap();
    let (oid, store) = (database.ids.next().oid, database.ids.next().store);
    end(database);
    change_manifest(folder.path(), |manifest| {
        (manifest.next_table_id, manifest.next_row_group_id) = (16_384, 1);
        (manifest.next_store_id, manifest.next_chunk_id) = (1, 1);
    });
    // Leftovers of a crash whose names nobody is to be given, whatever becomes of the files.
    std::fs::write(folder.path().join("rows/main-00000000000000ff.rows"), "x").unwrap();
    std::fs::write(folder.path().join("rows/delta-0000000000000123.rows.4.new"), "x").unwrap();
    let database = reopened(folder.path());
    let next = database.ids.next();
    assert!(next.oid >= oid && next.store >= store, "{next:?}");
    assert!(next.row_group > 0xff && next.chunk > 0x123, "{next:?}");
    let before = rows(&database, "t");
    insert_and_commit(&database, "t", ROWS + 10..3 * ROWS);
    assert_eq!(rows(&database, "t").len(), before.len() + 2 * ROWS - 10);
    database.close().unwrap();
}

#[test]
fn a_manifest_that_names_an_id_twice_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("data");
    let database = database_with_table(in_folder(&folder));
    let mut transaction = database.begin().unwrap();
    transaction.create_table("u", columns(), vec![], placement("near")).unwrap();
    insert(&mut transaction, "u", 0..ROWS + 1).unwrap();
    transaction.commit().unwrap();
    insert_and_commit(&database, "t", 0..ROWS + 1);
    database.close().unwrap();
    drop(database);
    let sound = std::fs::read(folder.join("MANIFEST")).unwrap();
    type Change = fn(&mut Manifest);
    let changes: [(&str, Change); 5] = [
        ("row group", |manifest| {
            let mut again = manifest.tables[0].row_groups[0];
            again.range = Some(7);
            manifest.tables[0].row_groups.push(again);
        }),
        ("row group", |manifest| manifest.tables[1].row_groups = manifest.tables[0].row_groups.clone()),
        ("delta file", |manifest| manifest.tables[1].delta = manifest.tables[0].delta.clone()),
        ("store", |manifest| manifest.tables[1].store = manifest.tables[0].store),
        ("id", |manifest| manifest.tables[1].def.id = manifest.tables[0].def.id),
    ];
    for (what, change) in changes {
        change_manifest(&folder, change);
        let errors = [Database::open(in_folder(&folder)).unwrap_err(), check_folder(&in_folder(&folder)).unwrap_err()];
        for error in errors {
            assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "{error}");
            let message = error.message();
            assert!(message.contains(what) && message.ends_with("is there twice"), "{message}");
        }
        std::fs::write(folder.join("MANIFEST"), &sound).unwrap();
    }
    let database = reopened(&folder);
    assert_eq!((rows(&database, "t").len(), rows(&database, "u").len()), (ROWS + 1, ROWS + 1));
    database.close().unwrap();
}

/// Objects that the log makes have ids of their own, as those of the checkpoint.
#[test]
fn a_log_that_makes_an_object_under_the_id_of_another_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    database.checkpoint().unwrap();
    let of_table = database.version().table("t").unwrap().def.id;
    database.ids.set_oid(of_table.0);
    let mut transaction = database.begin().unwrap();
    transaction.create_sequence(sequence("s", 1)).unwrap();
    transaction.commit().unwrap();
    // No manifest is written that would say so.
    assert_eq!(database.checkpoint().unwrap_err().code(), SqlState::DATA_CORRUPTED);
    end(database);
    let error = Database::open(in_folder(folder.path())).unwrap_err();
    assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
    assert!(error.message().ends_with("is there twice"), "{error}");
}

/// Should an id be drawn twice after all, what would go under the other's name is refused, and nothing is lost.
#[test]
fn rows_are_not_taken_over_by_those_of_an_id_that_is_drawn_twice() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    insert_and_commit(&database, "t", 0..ROWS);
    let first = row_groups(&database, "t")[0];
    database.ids.set_row_group(first);
    let mut transaction = database.begin().unwrap();
    insert(&mut transaction, "t", ROWS..2 * ROWS).unwrap();
    let error = transaction.commit().unwrap_err();
    assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
    assert!(error.message().ends_with("has other rows"), "{error}");
    // Of the same table that is moved, the rows are the same.
    let mut transaction = database.begin().unwrap();
    transaction.set_tablespace("t", None, "far").unwrap();
    transaction.commit().unwrap();
    assert_eq!(row_groups(&database, "t"), [first]);
    insert_and_commit(&database, "t", ROWS..2 * ROWS);
    let before = rows(&database, "t");
    assert_eq!(before.len(), 2 * ROWS);
    end(database);
    let database = reopened(folder.path());
    assert!(rows(&database, "t") == before);
    database.close().unwrap();
}

fn sequence(name: &str, start: i64) -> SequenceDef {
    SequenceDef {
        id: TableId(0),
        schema: SchemaId::PUBLIC,
        name: name.to_owned(),
        data_type: SqlType::BigInt,
        start,
        increment: 1,
        min: 1,
        max: i64::MAX,
        cache: 1,
        cycle: false,
        owner: None,
        position_id: 0,
    }
}

/// Values of a sequence are given, and how far is written, before what makes the sequence is committed. Where that is not, another sequence
/// does not go on from there.
#[test]
fn a_sequence_does_not_go_on_from_one_that_was_never_committed() {
    let folder = tempfile::tempdir().unwrap();
    let database = database_with_table(in_folder(folder.path()));
    let mut undone = database.begin().unwrap();
    undone.create_sequence(sequence("gone", 1)).unwrap();
    let gone = undone.version().catalog.sequences[&RelationName::from("gone")].clone();
    database.set_sequence(&gone, 1_000, true).unwrap();
    drop((undone, gone));
    end(database);
    for round in 0..3 {
        let database = reopened(folder.path());
        let name = format!("s{round}");
        let mut transaction = database.begin().unwrap();
        transaction.create_sequence(sequence(&name, 5)).unwrap();
        transaction.commit().unwrap();
        end(database);
        let database = reopened(folder.path());
        let made = database.state().catalog.sequences[&RelationName::from(name.as_str())].clone();
        assert_eq!(database.next_values(&made, 2, false).unwrap(), [5, 6], "round {round}");
        drop(made);
        end(database);
    }
}

/// A folder that has given values of sequences since its last checkpoint, and what is in file `SEQUENCES`.
fn with_sequence(folder: &Path) -> Vec<u8> {
    let database = database_with_table(in_folder(folder));
    let mut transaction = database.begin().unwrap();
    transaction.create_sequence(sequence("s", 1)).unwrap();
    transaction.commit().unwrap();
    database.checkpoint().unwrap();
    let early = std::fs::read(folder.join("SEQUENCES")).unwrap();
    let made = database.state().catalog.sequences[&RelationName::from("s")].clone();
    assert_eq!(database.next_values(&made, 3, false).unwrap(), [1, 2, 3]);
    insert_and_commit(&database, "t", 0..1);
    database.checkpoint().unwrap();
    assert_eq!(database.next_values(&made, 100, false).unwrap().last(), Some(&103));
    drop(made);
    end(database);
    early
}

#[test]
fn values_are_not_given_again_where_the_file_of_sequences_is_missing() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("data");
    let early = with_sequence(&folder);
    let file = folder.join("SEQUENCES");
    let sound = std::fs::read(&file).unwrap();
    let is_refused = |told: &str| {
        let errors = [Database::open(in_folder(&folder)).unwrap_err(), check_folder(&in_folder(&folder)).unwrap_err()];
        for error in errors {
            assert_eq!(error.code(), SqlState::DATA_CORRUPTED, "{error}");
            assert!(error.message().contains("SEQUENCES") && error.message().contains(told), "{error}");
        }
    };
    std::fs::remove_file(&file).unwrap();
    is_refused("is missing");
    std::fs::write(&file, "").unwrap();
    is_refused("is truncated");
    std::fs::write(&file, &early).unwrap();
    is_refused("is older than the manifest");
    // Given up, a sequence goes on where the checkpoint had it.
    std::fs::remove_file(&file).unwrap();
    reset_sequences(&in_folder(&folder)).unwrap();
    let given_up = reopened(&folder);
    let made = given_up.state().catalog.sequences[&RelationName::from("s")].clone();
    let next = given_up.next_values(&made, 1, false).unwrap()[0];
    assert!((4..103).contains(&next), "{next}");
    drop(made);
    end(given_up);
    std::fs::write(&file, &sound).unwrap();
    let error = reset_sequences(&in_folder(&folder)).unwrap_err();
    assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    let database = reopened(&folder);
    let made = database.state().catalog.sequences[&RelationName::from("s")].clone();
    assert!(database.next_values(&made, 1, false).unwrap()[0] > 103);
    drop(made);
    database.close().unwrap();
    // A folder of an earlier release may have none, and has one from its first start on.
    drop(database);
    std::fs::remove_file(&file).unwrap();
    change_manifest(&folder, |manifest| manifest.positions_written = 0);
    reopened(&folder).close().unwrap();
    assert!(file.exists() && manifest(&folder).positions_written > 0);
    // So has one that is new, and a copy.
    let new = home.path().join("new");
    let database = database_with_table(in_folder(&new));
    assert!(new.join("SEQUENCES").exists() && manifest(&new).positions_written > 0);
    let copy = home.path().join("copy");
    database.backup(&copy, &|| Ok(())).unwrap();
    database.close().unwrap();
    check_is_sound(&copy);
    std::fs::remove_file(copy.join("SEQUENCES")).unwrap();
    assert_eq!(check_folder(&in_folder(&copy)).unwrap_err().code(), SqlState::DATA_CORRUPTED);
}
