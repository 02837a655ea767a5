//! Verification and copies.

use crate::tests::{columns, in_folder, insert, insert_and_commit, placement, rows};
use crate::{Changed, Checked, Config, Database, NewIndex, check_folder, restore};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use tidepool_base::{Error, RowId, SqlState};
use tidepool_table::ROW_GROUP_ROWS;

const ROWS: usize = ROW_GROUP_ROWS + 30_000;

/// A table with main and delta, deleted rows and an index.
fn with_table(config: Config) -> Arc<Database> {
    let database = Database::open(config).unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.create_table("t", columns(), vec![], placement("far")).unwrap();
    insert(&mut transaction, "t", 0..ROWS).unwrap();
    transaction.create_index("t", NewIndex::primary_key([1])).unwrap();
    transaction.commit().unwrap();
    insert_and_commit(&database, "t", ROWS..ROWS + 1_000);
    let mut transaction = database.begin().unwrap();
    let gone: Vec<RowId> = (0..700).map(|position| RowId::new(0, position * 3)).collect();
    assert!(matches!(transaction.delete("t", &gone).unwrap(), Changed::Rows(_)));
    transaction.commit().unwrap();
    database
}

fn faults(checked: &[Checked]) -> Vec<&str> {
    checked.iter().flat_map(|checked| &checked.faults).map(String::as_str).collect()
}

fn nobody() -> tidepool_base::Result<()> {
    Ok(())
}

/// Some byte in the middle of a file is another.
fn damage(file: &Path) {
    let len = std::fs::metadata(file).unwrap().len();
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, len / 2).unwrap();
    file.write_all_at(&[!byte[0]], len / 2).unwrap();
}

fn row_files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> =
        std::fs::read_dir(folder.join("rows")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn a_database_at_work_is_sound_and_damage_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let database = with_table(in_folder(folder.path()));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                insert_and_commit(&database, "t", 1_000_000 + number..1_000_001 + number);
                if number % 50 == 0 {
                    database.merge("t").unwrap();
                    database.save().unwrap();
                }
                database.vacuum();
            }
        });
        for _ in 0..5 {
            let checked = database.check(&nobody).unwrap();
            assert_eq!(faults(&checked), [""; 0]);
            assert!(checked[0].object == "t" && checked[0].looked_at.ends_with("of 1 indexes"), "{checked:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let interrupted = || Err(Error::new(SqlState::QUERY_CANCELED, "enough"));
    assert_eq!(database.check(&interrupted).unwrap_err().code(), SqlState::QUERY_CANCELED);
    database.close().unwrap();
    let files = row_files(folder.path());
    damage(&files[0]);
    std::fs::remove_file(files.last().unwrap()).unwrap();
    let checked = database.check(&nobody).unwrap();
    let told = faults(&checked);
    let some = |what: &str| told.iter().filter(|fault| fault.contains(what)).count();
    assert!(told.len() == 2 && some("is damaged") == 1 && some("is missing") == 1, "{told:?}");
    drop(database);
    let checked = check_folder(&in_folder(folder.path())).unwrap();
    assert_eq!(faults(&checked).len(), 2, "{checked:?}");
}

#[test]
fn a_folder_that_nobody_uses_is_checked_with_its_log() {
    let folder = tempfile::tempdir().unwrap();
    let config = in_folder(folder.path());
    assert_eq!(check_folder(&config).unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    let database = with_table(config.clone());
    assert_eq!(check_folder(&config).unwrap_err().code(), SqlState::OBJECT_IN_USE);
    database.checkpoint().unwrap();
    insert_and_commit(&database, "t", 2_000_000..2_000_100);
    database.log.get().unwrap().flush().unwrap();
    database.halt();
    let expected = rows(&database, "t");
    drop(database);
    let checked = check_folder(&config).unwrap();
    assert_eq!(faults(&checked), [""; 0]);
    assert!(checked[1].looked_at.starts_with("1 transactions, "), "{checked:?}");
    // Nothing was changed.
    let database = Database::open(config.clone()).unwrap();
    assert_eq!(rows(&database, "t"), expected);
    database.close().unwrap();
    drop(database);
    damage(&folder.path().join("MANIFEST"));
    assert_eq!(check_folder(&config).unwrap_err().code(), SqlState::DATA_CORRUPTED);
}

/// A check looks each row up by itself, however many rows have its key.
#[test]
fn rows_of_one_key_are_checked_one_by_one() {
    const MANY: usize = 20_000;
    let database = Database::open(crate::tests::memory()).unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.create_table("t", columns(), vec![], placement("near")).unwrap();
    transaction.commit().unwrap();
    let version = database.version().table("t").unwrap();
    let same: Vec<_> = (0..MANY).map(|number| vec![Some(number.to_string()), Some("same".to_owned())]).collect();
    let mut transaction = database.begin().unwrap();
    transaction.create_index("t", NewIndex { unique: false, primary: None, ..NewIndex::primary_key([2]) }).unwrap();
    transaction.commit().unwrap();
    let mut transaction = database.begin().unwrap();
    let mut writer = transaction.writer("t").unwrap();
    writer.write(&crate::tests::batch_of(&version.def, &same)).unwrap();
    transaction.absorb(writer).unwrap();
    transaction.commit().unwrap();
    let table = database.version().table("t").unwrap();
    let tree = table.table().indexes()[0].tree();
    let _ = tree.take_touched();
    assert_eq!(faults(&database.check(&nobody).unwrap()), [""; 0]);
    let touched = tree.take_touched();
    assert!(touched.leaves < 4 * MANY as u64, "{touched:?}");
}

/// Row files that the log names, and no checkpoint yet, are looked at too.
#[test]
fn files_of_loads_since_the_checkpoint_are_checked() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("data");
    let config = in_folder(&folder);
    let database = Database::open(config.clone()).unwrap();
    let mut transaction = database.begin().unwrap();
    transaction.create_table("t", columns(), vec![], placement("near")).unwrap();
    transaction.commit().unwrap();
    database.checkpoint().unwrap();
    insert_and_commit(&database, "t", 0..ROW_GROUP_ROWS);
    let mut transaction = database.begin().unwrap();
    transaction.create_table("u", columns(), vec![], placement("far")).unwrap();
    insert(&mut transaction, "u", 0..20_000).unwrap();
    transaction.commit().unwrap();
    // Rows that stay where they are in another table's place, and some that nobody has any more.
    let mut transaction = database.begin().unwrap();
    transaction.set_tablespace("t", None, "far").unwrap();
    transaction.create_table("gone", columns(), vec![], placement("near")).unwrap();
    insert(&mut transaction, "gone", 0..20_000).unwrap();
    transaction.drop_table("gone").unwrap();
    transaction.commit().unwrap();
    let groups = |table: &str| {
        let version = database.version().table(table).unwrap();
        version.row_groups.iter().map(|group| format!("main-{:016x}.rows", group.id().0)).collect::<Vec<_>>()
    };
    let named = [groups("t"), groups("u")].concat();
    let of_load = folder.join("rows").join(&named[1]);
    let sound = std::fs::read(&of_load).unwrap();
    damage(&of_load);
    let checked = database.check(&nobody).unwrap();
    assert!(faults(&checked).len() == 1 && faults(&checked)[0].contains(named[1].as_str()), "{checked:?}");
    std::fs::write(&of_load, sound).unwrap();
    assert_eq!(faults(&database.check(&nobody).unwrap()), [""; 0]);
    database.halt();
    drop(database);
    let told = |config: &Config| -> Vec<String> {
        faults(&check_folder(config).unwrap()).into_iter().map(str::to_owned).collect()
    };
    assert_eq!(told(&config), [""; 0]);
    assert!(check_folder(&config).unwrap()[1].looked_at.contains(" files of rows, "));
    assert_eq!(named.len(), 2);
    for file in named.iter().map(|name| folder.join("rows").join(name)) {
        let sound = std::fs::read(&file).unwrap();
        damage(&file);
        let faults = told(&config);
        assert!(!faults.is_empty() && faults.iter().all(|fault| fault.contains("is damaged")), "{faults:?}");
        assert_eq!(Database::open(config.clone()).unwrap_err().code(), SqlState::DATA_CORRUPTED);
        std::fs::remove_file(&file).unwrap();
        let faults = told(&config);
        assert!(!faults.is_empty() && faults.iter().all(|fault| fault.contains("is missing")), "{faults:?}");
        std::fs::write(&file, sound).unwrap();
    }
    Database::open(config).unwrap().close().unwrap();
}

#[test]
fn backups_are_made_while_others_write_and_restored_elsewhere() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    let database = with_table(in_folder(&at("data")));
    let (stop, commits) = (AtomicBool::new(false), AtomicUsize::new(0));
    let copied = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // Pairs: a copy has both or none.
            let mut number = 3_000_000;
            while !stop.load(Ordering::Relaxed) {
                let mut transaction = database.begin().unwrap();
                insert(&mut transaction, "t", number..number + 1).unwrap();
                insert(&mut transaction, "t", number + 1..number + 2).unwrap();
                transaction.commit().unwrap();
                commits.fetch_add(1, Ordering::Relaxed);
                number += 2;
                if number % 20 == 0 {
                    database.merge("t").unwrap();
                    database.save().unwrap();
                }
            }
        });
        let copy = |number| {
            // A copy is of a later time than the last only when something was committed since.
            let before = commits.load(Ordering::Relaxed);
            while commits.load(Ordering::Relaxed) == before && !writer.is_finished() {
                std::thread::yield_now();
            }
            database.backup(&at(&format!("copy{number}")), &nobody).unwrap()
        };
        let copied: Vec<_> = (0..3).map(copy).collect();
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        copied
    });
    assert!(copied.windows(2).all(|pair| pair[0].ts < pair[1].ts) && copied[0].tables == 1);
    // Not into what is there, nor half.
    assert_eq!(database.backup(&at("copy1"), &nobody).unwrap_err().code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    let interrupted = || Err(Error::new(SqlState::QUERY_CANCELED, "enough"));
    assert_eq!(database.backup(&at("half"), &interrupted).unwrap_err().code(), SqlState::QUERY_CANCELED);
    assert!(!at("half").exists());
    database.save().unwrap();
    let deltas = database.storage.as_ref().unwrap().delta_files();
    assert!(deltas > 1, "delta takes several files");
    let named = database.version().table("t").unwrap().row_groups.len() + deltas;
    assert!(row_files(&at("data")).len() <= named, "what was lent is removed since");
    for number in 0..3 {
        let (copy, new) = (at(&format!("copy{number}")), at(&format!("new{number}")));
        assert_eq!(faults(&check_folder(&in_folder(&copy)).unwrap()), [""; 0]);
        restore(&copy, &in_folder(&new), &[], &nobody).unwrap();
        // The copy can be served as well, and both go on by themselves.
        for folder in [&copy, &new] {
            let restored = Database::open(in_folder(folder)).unwrap();
            let count = rows(&restored, "t").len();
            assert!(count >= ROWS + 300 && (count - (ROWS + 1_000 - 700)).is_multiple_of(2), "{count}");
            assert_eq!(faults(&restored.check(&nobody).unwrap()), [""; 0]);
            insert_and_commit(&restored, "t", 9_000_000..9_000_001);
            restored.close().unwrap();
        }
    }
    // Nothing comes of a damaged one.
    damage(&row_files(&at("copy2"))[0]);
    let error = restore(&at("copy2"), &in_folder(&at("never")), &[], &nobody).unwrap_err();
    assert_eq!(error.code(), SqlState::DATA_CORRUPTED);
    assert!(!at("never").join("MANIFEST").exists());
    let error = restore(&at("copy1"), &in_folder(&at("new1")), &[], &nobody).unwrap_err();
    assert_eq!(error.code(), SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE);
    let space = [("pool".to_owned(), tidepool_device::Location::Anon)];
    let error = restore(&at("copy1"), &in_folder(&at("other")), &space, &nobody).unwrap_err();
    assert_eq!(error.code(), SqlState::UNDEFINED_OBJECT);
}
